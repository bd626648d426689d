"""What our kernels share behind vLLM's layers with caches: over pages, over latents or over states."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from atom_kernels.mixers import MixerPlan
from atom_kernels.protocols import Caches


class AtomKernels:
    """Our plan over the cache of one layer of vLLM's.

    Attributes:
        owner: our model's layer; None in vLLM's models.
        weights: as the plan prepared them.
        keeps_states: the cache has states of requests, and not what is kept of each token.
    """

    keeps_states: ClassVar[bool] = False

    owner: Any = None
    weights: Any = None
    _bound: tuple[int, MixerPlan, Caches] | None = None

    def plan_for(self, block_size: int) -> MixerPlan:
        """The plan over vLLM's blocks of `block_size` tokens; raises UnsupportedMixerError."""
        raise NotImplementedError

    def bind(self, kv_cache: Any) -> tuple[MixerPlan, Caches]:
        """The plan for how a cache of vLLM's lies, and the cache as the plan's layout has it."""
        raise NotImplementedError

    def mix(
        self, inputs: tuple[torch.Tensor, ...], kv_cache: torch.Tensor | Caches, metadata: Any, prologue: Any
    ) -> torch.Tensor:
        """See `MixerPlan.forward`; `metadata` is vLLM's of the step. vLLM gives a layer one cache for long."""
        address = (kv_cache if isinstance(kv_cache, torch.Tensor) else kv_cache[0]).data_ptr()
        if self._bound is None or self._bound[0] != address:
            self._bound = (address, *self.bind(kv_cache))
        _, plan, caches = self._bound
        return plan.runner.forward(inputs, caches, metadata.of(plan), weights=self.weights, prologue=prologue)
