"""Dispatch of rows to the owners of their experts, and its way back."""

from mori.ops.config import EpDispatchCombineConfig as EpDispatchCombineConfig
from mori.ops.config import EpDispatchCombineKernelType as EpDispatchCombineKernelType
from mori.ops.dispatch_combine import EpDispatchCombineOp as EpDispatchCombineOp
