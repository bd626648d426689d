"""The chosen experts of very few tokens through Triton, as a backend of their operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.moe.contract import ExpertsProblem, check_experts_inputs
from atom_kernels.operator import Backend

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Each pair reads its expert by itself: with more tokens many experts would be read twice.
_MAX_TOKENS = 1
# Rows of all experts of a token that one program of the second product has.
_MOST_ROWS = 1024


@dataclass(frozen=True)
class RowsConfig:
    """Outputs and inputs of a tile, and warps of a program, for one product."""

    block_n: int
    block_i: int
    num_warps: int = 4

    def launch(self) -> dict[str, Any]:
        """As the kernel's constants."""
        return {"BLOCK_N": self.block_n, "BLOCK_I": self.block_i, "num_warps": self.num_warps}


GATE_UP, DOWN = RowsConfig(4, 512), RowsConfig(4, 256)


class FewTokensExperts:
    """`experts` for given weights."""

    def __init__(
        self,
        problem: ExpertsProblem,
        weights: Mapping[str, torch.Tensor | None],
        gate_up: RowsConfig = GATE_UP,
        down: RowsConfig = DOWN,
    ) -> None:
        # Triton is imported where a plan uses it, and only there.
        from atom_kernels.moe import triton_few_tokens
        from atom_kernels.triton_support import power_of_two

        self._problem, self._gate_up_config, self._down_config = problem, gate_up, down
        self._gate_up: Any = triton_few_tokens.gate_up_of_pair_kernel
        self._down: Any = triton_few_tokens.down_of_token_kernel
        self._weights = {name: None if tensor is None else tensor.contiguous() for name, tensor in weights.items()}
        self._top_k_block = power_of_two(problem.top_k)

    def __call__(
        self, x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> torch.Tensor:
        check_experts_inputs(self._problem, x_TD, weights_TK, ids_TK, base_TD)
        x_TD, weights_TK, ids_TK = x_TD.contiguous(), weights_TK.contiguous(), ids_TK.contiguous()
        base_TD = None if base_TD is None else base_TD.contiguous()
        out_TD, num_tokens, problem = torch.empty_like(x_TD), x_TD.shape[0], self._problem
        if num_tokens == 0:
            return out_TD
        size, hidden_size, weights = problem.intermediate_size, problem.hidden_size, self._weights
        hidden = x_TD.new_empty(ids_TK.numel(), size)
        self._gate_up[(-(-size // self._gate_up_config.block_n), ids_TK.numel())](
            x_TD, weights["gate_up"], weights["gate_up_bias"], ids_TK, hidden, problem.alpha, problem.limit,
            NUM_EXPERTS=problem.num_experts, TOP_K=problem.top_k, DEPTH=hidden_size, SIZE=size,
            ACTIVATION=problem.activation, **self._gate_up_config.launch(),
        )  # fmt: skip
        self._down[(-(-hidden_size // self._down_config.block_n), num_tokens)](
            hidden, weights["down"], weights["down_bias"], weights_TK, ids_TK, base_TD, out_TD,
            NUM_EXPERTS=problem.num_experts, TOP_K=problem.top_k, TOP_K_BLOCK=self._top_k_block, DEPTH=size,
            WIDTH=hidden_size, **self._down_config.launch(),
        )  # fmt: skip
        return out_TD


def _supports(problem: ExpertsProblem, platform: Any) -> str | None:
    if problem.dtype not in _DTYPES:
        return f"written for float32, bfloat16 and float16, not {problem.dtype}"
    if problem.batch_invariant:
        return "adds up in another order than what serves more tokens"
    if problem.top_k * DOWN.block_n > _MOST_ROWS:
        return f"reads all experts of a token at once, which {problem.top_k} are too many for"
    if 2 * problem.intermediate_size * problem.hidden_size >= 2**31:
        return "addresses the weights of one expert by 32 bits"
    return None


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    return FewTokensExperts(problem, weights)


FEW_TOKENS_BACKEND = Backend(
    name="triton",
    implementation="Triton products with single rows, the sum in the second",
    supports=_supports,
    bind=_bind,
    max_rows=_MAX_TOKENS,
)
