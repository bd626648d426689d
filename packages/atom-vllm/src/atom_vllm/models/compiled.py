"""Our models under vLLM's torch.compile: vLLM decides when, splits graphs at attention, and captures the pieces."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile

from atom_vllm import settings


def is_compiled(vllm_config: Any) -> bool:
    """On CPUs our operators are called without torch's dispatcher in between, which costs more than compiling gives."""
    return settings.compiles(default=vllm_config.device_config.device_type != "cpu")


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1, "inputs_embeds": 0}, enable_if=is_compiled)
class _Decoder(nn.Module):
    """What vLLM compiles: from tokens to hidden states."""

    def __init__(self, *, vllm_config: Any, prefix: str = "", model: nn.Module) -> None:
        super().__init__()
        self._decode = model.forward  # a method, since the module's place is in the wrapper

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._decode(input_ids, positions, inputs_embeds)


def compiled(model: nn.Module, vllm_config: Any) -> Callable[..., torch.Tensor]:
    """`model` as vLLM's configuration wants it run."""
    if not is_compiled(vllm_config):
        return model.forward
    return _Decoder(vllm_config=vllm_config, model=model).__call__
