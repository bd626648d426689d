# ruff: noqa: F403
"""The emulator's AITER: imports and re-exports what the real package does, as far as the emulator has it."""

from .jit import core as core
from .ops.activation import *
from .ops.enum import *
from .ops.rmsnorm import *
from .utility import dtypes as dtypes
