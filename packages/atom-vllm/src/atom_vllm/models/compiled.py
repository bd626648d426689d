"""Our models under vLLM's torch.compile: vLLM decides when, splits graphs at attention, and captures the pieces."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile

from atom_vllm import settings
from atom_vllm.models.added_rows import EveryRow
from atom_vllm.models.engines import among_engines
from atom_vllm.parallel import exchanges_rows


def is_compiled(vllm_config: Any) -> bool:
    """On CPUs our operators are called without torch's dispatcher in between, which costs more than compiling gives.

    A graph would hold the numbers of rows that engines exchanged when it was traced.
    """
    if exchanges_rows(vllm_config):
        return False
    return settings.compiles(default=vllm_config.device_config.device_type != "cpu")


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "inputs_embeds": 0, "added": 0}, enable_if=is_compiled
)
class _Decoder(nn.Module):
    """What vLLM compiles: from tokens to hidden states."""

    def __init__(self, *, vllm_config: Any, prefix: str = "", model: nn.Module) -> None:
        super().__init__()
        self._decode = decoded_by(model)  # a function, since the module's place is in the wrapper

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._decode(input_ids, positions, inputs_embeds, added)


def decoded_by(model: nn.Module) -> Callable[..., torch.Tensor]:
    """``(input_ids, positions, inputs_embeds, added) -> hidden states``; see `AddedRows` for the last one."""

    def decode(
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if added is None:
            return model.forward(input_ids, positions, inputs_embeds)
        return model.forward(input_ids, positions, inputs_embeds, seen=EveryRow(added))

    return decode


def compiled(model: nn.Module, vllm_config: Any) -> Callable[..., torch.Tensor]:
    """As `decoded_by`, run as vLLM's configuration wants it."""
    if exchanges_rows(vllm_config):
        return among_engines(decoded_by(model))
    if not is_compiled(vllm_config):
        return decoded_by(model)
    return _Decoder(vllm_config=vllm_config, model=model).__call__
