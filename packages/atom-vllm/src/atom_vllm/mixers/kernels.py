"""What our kernels share behind vLLM's attention layers, over pages or over latents."""

from __future__ import annotations

from typing import Any

import torch

from atom_kernels.mixers import MixerPlan
from atom_kernels.protocols import Caches


class AtomKernels:
    """Our plan over the cache of one layer of vLLM's.

    Attributes:
        owner: our model's layer; None in vLLM's models.
        weights: as the plan prepared them.
    """

    owner: Any = None
    weights: Any = None
    _bound: tuple[int, MixerPlan, Caches] | None = None

    def plan_for(self, block_size: int) -> MixerPlan:
        """The plan over vLLM's blocks of `block_size` tokens; raises UnsupportedMixerError."""
        raise NotImplementedError

    def bind(self, kv_cache: torch.Tensor) -> tuple[MixerPlan, Caches]:
        """The plan for how a cache of vLLM's lies, and the cache as the plan's layout has it."""
        raise NotImplementedError

    def mix(
        self, inputs: tuple[torch.Tensor, ...], kv_cache: torch.Tensor, metadata: Any, prologue: Any
    ) -> torch.Tensor:
        """See `MixerPlan.forward`; `metadata` is vLLM's of the step. vLLM gives a layer one cache for long."""
        if self._bound is None or self._bound[0] != kv_cache.data_ptr():
            self._bound = (kv_cache.data_ptr(), *self.bind(kv_cache))
        _, plan, caches = self._bound
        return plan.runner.forward(inputs, caches, metadata.of(plan), weights=self.weights, prologue=prologue)
