"""Multi-head latent attention: projections of low rank, and attention over cached latents as a mixer.

DeepSeek-AI 2024, "DeepSeek-V2", https://arxiv.org/abs/2405.04434, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.attention.mla import MlaProblem, MlaPrologue
from atom_kernels.formats import Plain
from atom_models.layers.layer import Layer
from atom_models.layers.linear import ColumnParallelLinear, Linear, RowParallelLinear, Shard
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.layers.mixer import Mixer
from atom_models.layers.norm import RMSNorm
from atom_models.quantization import ExpectedWeight

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.rotary import Rotary

# The norms of latents have this one in every published model, whatever their config says of the other norms.
_NORM_EPS = 1e-6


class MLAAttention(Layer):
    """``forward(positions, hidden_states [T, D]) -> [T, D]``, which may be `Unsummed`: a layer's whole attention.

    Args:
        prefix: the layer's name in the checkpoint, such as ``"model.layers.3.self_attn"``.
        num_heads: over all ranks, which share them; latents are every rank's own.
        q_lora_rank: of the queries' latent; None projects queries at once.
        kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim: see `MlaProblem`.
        scale: factor on ``q @ k``, see `mla_scale`.
        bias: the projections to latents and the last one have biases.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        prefix: str,
        hidden_size: int,
        num_heads: int,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        scale: float,
        rotary: Rotary,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if bias and q_lora_rank is None:
            raise ValueError(f"{prefix}: attention_bias needs q_lora_rank: no published model is without")
        query_dim, latent_dim = qk_nope_head_dim + qk_rope_head_dim, kv_lora_rank + qk_rope_head_dim
        local_heads = context.split(num_heads, f"{prefix}: num_attention_heads")
        if q_lora_rank is None:
            query = Shard("q_proj", num_heads * query_dim, context.collectives.size)
        else:
            query = Shard("q_a_proj", q_lora_rank, 1)
        # What input_layernorm feeds: queries or their latents, and the latents of keys and values.
        self.qkv_proj = Linear(
            hidden_size,
            (query, Shard("kv_a_proj_with_mqa", latent_dim, 1)),
            context,
            prefix=f"{prefix}.qkv_a_proj",
            bias=bias,
        )
        self._sizes = [self.qkv_proj.out_features - latent_dim, latent_dim]
        self.q_a_layernorm = self.q_b_proj = None
        if q_lora_rank is not None:
            self.q_b_proj = ColumnParallelLinear(
                q_lora_rank, num_heads * query_dim, context, prefix=f"{prefix}.q_b_proj"
            )
            self.q_a_layernorm = RMSNorm(
                q_lora_rank, _NORM_EPS, context, prefix=f"{prefix}.q_a_layernorm", feeds=self.q_b_proj
            )
        kv_a_layernorm = RMSNorm(kv_lora_rank, _NORM_EPS, context, prefix=f"{prefix}.kv_a_layernorm")
        problem = MlaProblem(
            num_heads=local_heads,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            scale=scale,
            dtype=context.dtype_name,
            kv_cache_dtype=context.kv_cache_dtype,
            block_size=context.block_size,
        )
        self.attn = LatentAttention(
            problem, context=context, prefix=f"{prefix}.attn", rotary=rotary, norm=kv_a_layernorm
        )
        self.o_proj = RowParallelLinear(
            num_heads * v_head_dim, hidden_size, context, prefix=f"{prefix}.o_proj", bias=bias
        )

    def forward(self, positions: torch.Tensor, hidden_states: Any) -> Any:
        q, kv = self.qkv_proj(hidden_states).split(self._sizes, dim=-1)
        if self.q_b_proj is not None and self.q_a_layernorm is not None:
            q = self.q_b_proj(self.q_a_layernorm(q))
        return self.o_proj(self.attn(q, kv, positions))


class LatentAttention(Mixer):
    """``forward(q, kv, positions) -> [T, num_heads * v_head_dim]``, causal, over everything cached so far.

    q is ``[T, num_heads * query_dim]``, kv ``[T, latent_dim]``, both raw. It holds ``<parent>.kv_b_proj``, which turns
    latents into keys and values, in the form that its kernel wants: queries may be multiplied by one half of it instead
    (absorbed), so it never is a linear of its own.

    Args:
        problem: of this rank.
        prefix: the layer's name, by which hosts know its cache.
        rotary: angles for the last part of queries and latents.
        norm: of latents, before they are cached.
    """

    def __init__(
        self, problem: MlaProblem, *, context: BuildContext, prefix: str, rotary: Rotary, norm: RMSNorm
    ) -> None:
        if rotary.cos_sin_cache.shape[1] != problem.qk_rope_head_dim:
            turned = f"{rotary.cos_sin_cache.shape[1]} of {problem.qk_rope_head_dim}"
            raise ValueError(f"{prefix}: {turned} rotary elements would turn; latent attention turns all of them")
        super().__init__(problem, prefix=prefix, context=context)
        self._context = context
        self._q_shape = (problem.num_heads, problem.query_dim)
        self._rotary = rotary
        self.norm = norm
        rows, rank = problem.weights["kv_b"].shape
        first, ranks = rows * context.collectives.rank, context.collectives.size
        name = f"{prefix.rpartition('.')[0]}.kv_b_proj"
        stored = context.quantization.for_layer(name, context.dtype).stored
        matrix = StoredMatrix(name, stored, (rows * ranks, rank), (first, first + rows), (0, rank))
        self._kv_b = MatrixStack((matrix,), context.device)
        self.ignored_weights = frozenset(f"{name}.{suffix}" for suffix in stored.ignored)

    def mix(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        norm, rotary = self.norm, self._rotary
        prologue = MlaPrologue(
            positions,
            cos_sin_cache=rotary.cos_sin_cache,
            interleaved=rotary.interleaved,
            norm_weight=norm.effective_weight,
            norm_eps=norm.eps,
        )
        return self._host.mix((q.view(q.shape[0], *self._q_shape), kv), prologue).view(q.shape[0], -1)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return self._kv_b.expected_weights()

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return self._kv_b.shapes()

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        self._kv_b.load(name, tensor)

    def finish(self) -> None:
        """Gives the kernel plain numbers, whatever the checkpoint has."""
        tensors, stored = self._kv_b.take(), self._kv_b.weight_format
        if tensors:
            plain = Plain(self._context.dtype)
            if stored != plain:
                tensors = plain.quantize(stored.dequantize(tensors, self._kv_b.shape[1]))
            self._host.take_weights({"kv_b": tensors["weight"]})


def mla_scale(query_dim: int, rope_parameters: Mapping[str, Any]) -> float:
    """The factor on ``q @ k``: ``query_dim ** -0.5``, times the square of YaRN's temperature if the config has one."""
    scale, factor = query_dim**-0.5, float(rope_parameters.get("factor") or 1.0)
    all_dim = rope_parameters.get("mscale_all_dim")
    if rope_parameters.get("rope_type", "default") == "default" or not all_dim or factor <= 1:
        return scale
    return scale * (0.1 * float(all_dim) * math.log(factor) + 1.0) ** 2
