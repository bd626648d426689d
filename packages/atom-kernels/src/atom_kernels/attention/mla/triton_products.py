"""Products of each head's rows with its own weight in Triton: for few tokens, where reading the weights takes the time.

Shapes: T tokens, H heads, K inputs and N outputs of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from atom_kernels.powers_of_two import power_of_two
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch
from atom_kernels.triton.support import dependent_launch, wait_for_inputs

# Tokens up to which this is faster than torch's batched product.
MAX_TOKENS = 32
# Programs that fill a large GPU.
_PROGRAMS = 128


@triton.jit(do_not_specialize=["num_tokens"])
def head_products_kernel(
    x_ptr, weight_ptr, out_ptr, num_tokens, x_token, x_head, weight_head, weight_k, weight_n, out_token, out_head,
    K: tl.constexpr, N: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a head, `BLOCK_N` outputs and `BLOCK_T` tokens."""
    head = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    k = tl.arange(0, BLOCK_K)
    # Weights do not depend on other kernels.
    weight_at = weight_ptr + head * weight_head + k[:, None] * weight_k + columns[None, :] * weight_n
    weight = tl.load(weight_at, mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0)
    wait_for_inputs(DEPENDENT)
    x_at = x_ptr + tokens[:, None].to(tl.int64) * x_token + head * x_head + k[None, :]
    x = tl.load(x_at, mask=(tokens < num_tokens)[:, None] & (k < K)[None, :], other=0.0)
    if UPCAST:
        x, weight = x.to(tl.float32), weight.to(tl.float32)
    out = tl.dot(x, weight, input_precision="ieee")
    out_at = out_ptr + tokens[:, None].to(tl.int64) * out_token + head * out_head + columns[None, :]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=(tokens < num_tokens)[:, None] & (columns < N)[None, :])


def head_products(x_THK: torch.Tensor, weight_HKN: torch.Tensor, out_THN: torch.Tensor) -> None:
    """``out[t, h] = x[t, h] @ weight[h]``; the last dimensions of x and out are contiguous, the weight is any view."""
    num_tokens, num_heads, size = x_THK.shape
    num_outputs = weight_HKN.shape[2]
    # Float32 products do not use tensor cores.
    if num_tokens > MAX_TOKENS or x_THK.dtype is torch.float32:
        torch.bmm(x_THK.transpose(0, 1), weight_HKN, out=out_THN.transpose(0, 1))
        return
    block_t = 16 if num_tokens <= 16 else 32
    blocks = max(1, _PROGRAMS // num_heads)
    block_n = min(max(power_of_two(-(-num_outputs // blocks)), 16), 64)
    grid = (num_heads, -(-num_outputs // block_n), -(-num_tokens // block_t))
    options: dict[str, Any] = {
        "K": size,
        "N": num_outputs,
        # The interpreter multiplies float32 matrices only.
        "UPCAST": triton_interpret(),
        "BLOCK_T": block_t,
        "BLOCK_K": max(16, power_of_two(size)),
        "BLOCK_N": block_n,
    }
    launch(
        head_products_kernel, grid,
        x_THK, weight_HKN, out_THN, num_tokens,
        *x_THK.stride()[:2], *weight_HKN.stride(), *out_THN.stride()[:2], **options, **dependent_launch(),
    )  # fmt: skip
