"""Makes Triton's interpreter run the loops of our kernels, and quickly, for folders of tests that need it or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from atom_kernels.settings import triton_interpret


def what_to_ignore() -> list[str]:
    """Globs of the tests that cannot run here: all of a folder without a GPU and without the interpreter."""
    if triton_interpret():
        _let_loops_run_to_loaded_numbers()
        _look_up_types_once()
        _describe_shapes_when_asked()
        _check_no_overflow_that_nobody_asks_for()
        _patch_the_language_once()
        return []
    return [] if torch.cuda.is_available() else ["test_*.py"]


def _let_loops_run_to_loaded_numbers() -> None:
    """Triton 3.6 interprets a loop's bound by `int(array of one number)`, which NumPy has refused since 2.4."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _patch_the_language_once() -> None:
    """The interpreter patches all of Triton's language at each call of a function, which takes longer than most calls.

    Our processes interpret all that they run, so the language stays patched.
    """
    from triton import language
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    patched = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda function: patched


def _check_no_overflow_that_nobody_asks_for() -> None:
    """The interpreter computes sums and products of integers once more in 64 bits, and asserts nothing of them."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


def _look_up_types_once() -> None:
    """The interpreter makes a table of all types at each look at one."""
    from triton.runtime import interpreter

    look_up, known = interpreter._get_np_dtype, {}

    def looked_up(type_of_triton: Any) -> Any:
        name = type_of_triton.scalar.name
        if name not in known:
            known[name] = look_up(type_of_triton)
        return known[name]

    interpreter._get_np_dtype = looked_up


def _describe_shapes_when_asked() -> None:
    """Each tensor's shape is a tuple whose type has a name, as its own type has: they are much of a run, and unread."""
    from triton.language import core

    make_tuple, make_type = core.tuple.__init__, core.block_type.__init__
    shapes: dict[tuple[int, ...], Any] = {}

    def made_tuple(self: Any, args: Any, type: Any = None) -> None:
        if type is None:
            self.values = list(args)
        else:
            make_tuple(self, args, type)

    def made_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        if sizes not in shapes:
            make_type(self, element_ty, shape)  # which checks it
            shapes[sizes] = self.numel
        self.element_ty, self.shape, self.numel = element_ty, core.tuple(sizes), shapes[sizes]
        self.__dict__.pop("name", None)

    core.tuple.__init__, core.block_type.__init__ = made_tuple, made_type
    _ask_for(core.tuple, "type", lambda self: core._type_for_tuple_values(self.values))
    _ask_for(core.block_type, "name", lambda self: f"<{self.shape}, {self.element_ty}>")


def _ask_for(owner: type, name: str, answer: Callable[[Any], Any]) -> None:
    """Gives the objects of a class an attribute that is made when it is first read."""
    attribute = cached_property(answer)
    attribute.__set_name__(owner, name)
    setattr(owner, name, attribute)
