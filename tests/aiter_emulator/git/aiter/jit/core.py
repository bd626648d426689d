"""The decorator that binds Python declarations to C++."""

from tests.aiter_emulator.semantics.binding import compile_ops as compile_ops
