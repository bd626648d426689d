"""What vLLM asks of models that keep states of requests, beside their layers."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_vllm import features, states


class CopiesStates:
    """How vLLM copies a state from page to page behind a cached prefix: each of its tensors whole."""

    def get_mamba_state_copy_func(self) -> tuple[Callable[..., Any], ...]:
        from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator

        return MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()

    def get_mamba_state_copy_funcs(self, mamba_types: set[Any]) -> dict[Any, tuple[Callable[..., Any], ...]]:
        """Asked for by vLLM since 0.32."""
        return dict.fromkeys(mamba_types, self.get_mamba_state_copy_func())


def planned_dtypes(own: Any) -> classmethod[Any, Any, Any]:
    """vLLM plans pages before it makes a model, by the class `own`: for ours as large as our states."""

    def get_mamba_state_dtype_from_config(cls: Any, vllm_config: Any) -> tuple[torch.dtype, ...]:
        planned = own.get_mamba_state_dtype_from_config(vllm_config)
        if features.why_not_ours(vllm_config) is not None:
            return planned
        return *planned[:-1], getattr(torch, states.STATE_DTYPE)

    return classmethod(get_mamba_state_dtype_from_config)
