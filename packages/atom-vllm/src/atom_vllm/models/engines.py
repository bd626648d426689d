"""Steps that vLLM's data-parallel engines run together: each has rows of its own for the experts of all."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_models.layers.mixture.exchange import rows_of_engines


def among_engines(decode: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`decode`, with mixtures that exchange rows as vLLM has the engines agree on before each step.

    An engine without requests runs a row that means nothing, so that the others find its experts.
    """
    from vllm.forward_context import get_forward_context

    def decode_together(*inputs: Any) -> torch.Tensor:
        agreed = get_forward_context().dp_metadata
        if agreed is None:
            raise RuntimeError(
                "vLLM runs a mixture on data-parallel engines without numbers of their tokens (dp_metadata), by which "
                "they exchange rows; ATOM_VLLM_ARCHITECTURES can leave the model to vLLM"
            )
        with rows_of_engines(agreed.num_tokens_across_dp_cpu.tolist()):
            return decode(*inputs)

    return decode_together
