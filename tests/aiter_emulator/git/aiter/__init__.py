# ruff: noqa: F403
"""The emulator's AITER: imports and re-exports what the real package does, as far as the emulator has it."""

from .jit import core as core
from .ops.activation import *
from .ops.attention import *
from .ops.batched_gemm_op_bf16 import *
from .ops.cache import *
from .ops.custom_all_reduce import *
from .ops.enum import *
from .ops.fused_qk_norm_rope_cache_quant import *
from .ops.fused_qk_rmsnorm_group_quant import *
from .ops.gemm_op_a4w4 import *
from .ops.gemm_op_a8w8 import *
from .ops.mha import *
from .ops.moe_op import *
from .ops.norm import *
from .ops.quant import *
from .ops.rmsnorm import *
from .ops.rope import *
from .ops.sample import *
from .ops.topk import *
from .utility import dtypes as dtypes
