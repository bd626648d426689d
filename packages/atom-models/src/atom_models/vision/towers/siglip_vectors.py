"""SigLIP's vectors of pictures: a query that was learned looks at all patches of a picture.

Zhai et al. 2022, https://arxiv.org/abs/2106.04560, appendix D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.select import select
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, LayerNorm, ReplicatedLinear, Residual, UngatedMLP
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.vision.reading import Vision
from atom_models.vision.tower import unshared
from atom_models.vision.towers.siglip import SiglipTower, SiglipVisionConfig
from atom_models.vision.towers.step import TowerStep


@dataclass(frozen=True, kw_only=True)
class SiglipVectorsConfig(SiglipVisionConfig):
    """Fields of `vision_config`."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"vision_use_head": (True,)}


class LearnedQuery(WeightedLayer):
    """``[pictures, patches, hidden_size] -> [pictures, hidden_size]``: attention of one query, the same for all."""

    def __init__(self, size: int, num_heads: int, context: BuildContext, *, prefix: str) -> None:
        super().__init__(context)
        self._num_heads = num_heads
        self.expect(f"{prefix}.probe", (1, 1, size), slot="probe")
        self.expect(f"{prefix}.attention.in_proj_weight", (3 * size, size), slot="weight")
        self.expect(f"{prefix}.attention.in_proj_bias", (3 * size,), slot="bias")
        self._problem = LinearProblem(size, 2 * size, context.dtype, True)
        self._keys_and_values: Callable[..., Any] = not_loaded(prefix)
        self._query: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = self._keys_and_values(x.flatten(0, 1)).view(*x.shape[:2], 2, self._num_heads, -1)
        keys, values = pairs.permute(2, 0, 3, 1, 4)
        if self._query is None:
            raise RuntimeError("the query was never loaded")
        return scaled_dot_product_attention(self._query.expand(len(x), -1, -1, -1), keys, values).flatten(1)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        size = self._problem.in_features
        query = linear(weights["probe"].view(1, size), weights["weight"][:size], weights["bias"][:size])
        self._query = query.view(1, self._num_heads, 1, -1)
        others = {name: weights[name][size:].contiguous() for name in ("weight", "bias")}
        self._keys_and_values = select(LINEAR, self._problem, self._context.platform).prepare(others)


class SiglipHead(Layer):
    """``[pictures, patches, hidden_size] -> [pictures, hidden_size]``."""

    def __init__(self, config: SiglipVectorsConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.attention = LearnedQuery(size, config.num_heads, context, prefix=prefix)
        self.out_proj = ReplicatedLinear(size, size, context, prefix=f"{prefix}.attention.out_proj", bias=True)
        self.norm = LayerNorm(size, config.layer_norm_eps, context, prefix=f"{prefix}.layernorm")
        self.mlp = UngatedMLP(
            *(size, config.intermediate_size, config.hidden_act),
            context=context, prefix=f"{prefix}.mlp", up="fc1", down="fc2", bias=True,
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = Residual(self.out_proj(self.attention(x)))
        return residual.plus(self.mlp(self.norm(residual))).tensor()


class SiglipVectors(SiglipTower):
    config_class = SiglipVectorsConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context, prefix=prefix)
        self.head = SiglipHead(self.config, unshared(context), prefix=f"{prefix}.head")

    def run(self, step: TowerStep) -> torch.Tensor:
        return self.head(self.states(step).unflatten(0, (-1, self.rows_of_unit)))
