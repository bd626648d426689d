"""What Qwen3-Next and Qwen3.5 share: delta nets, and gated attention in each fourth layer.

Gated delta nets: Yang et al. 2024, https://arxiv.org/abs/2412.06464. All norms but that of the delta net are stored
less one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atom_kernels.delta import DeltaNetProblem
from atom_kernels.protocols import Collectives
from atom_models.architectures.llama import LlamaDecoderLayer, LlamaForCausalLM, llama_norm
from atom_models.architectures.qwen3 import Qwen3Config
from atom_models.build_context import BuildContext
from atom_models.decoder.prediction_names import PredictionNames, in_mtp
from atom_models.layers import (
    Attention,
    DeltaNet,
    GatedRMSNorm,
    Layer,
    Linear,
    Normed,
    QKVParallelLinear,
    Rotary,
    RowParallelLinear,
    Shard,
    SigmoidGate,
    Term,
)

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass(frozen=True, kw_only=True)
class QwenHybridConfig(Qwen3Config):
    """Fields of `config.json`; `layer_types`, or else `full_attention_interval`, says which layers have attention."""

    norm_offset = 1.0

    head_dim: int | None = 256
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4
    layer_types: Sequence[str] | None = None

    def has_attention(self, layer_id: int) -> bool:
        """Whether layer `layer_id` has attention and not a delta net; layers that predict further tokens have it."""
        if layer_id >= self.num_hidden_layers:
            return True
        if self.layer_types is None:
            return (layer_id + 1) % self.full_attention_interval == 0
        kind = self.layer_types[layer_id]
        if kind not in (FULL, LINEAR):
            raise ValueError(f"layer_types has {kind!r} for layer {layer_id}; allowed are {FULL} and {LINEAR}")
        return kind == FULL


class QwenGatedAttention(Layer):
    """Attention whose output is scaled by a gate for each of its elements."""

    def __init__(
        self, config: QwenHybridConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        self._head_size = size = config.head_size
        self._num_heads = context.split(config.num_attention_heads, f"{prefix}: num_attention_heads")
        # Each head's query lies before its gate.
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=size,
            num_heads=2 * config.num_attention_heads,
            num_kv_heads=config.kv_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.qkv_bias,
            evenly=True,
        )
        self.attn = Attention(
            self._num_heads,
            self.qkv_proj.num_kv_heads,
            size,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
            q_norm=llama_norm(config, context, prefix=f"{prefix}.q_norm", size=size),
            k_norm=llama_norm(config, context, prefix=f"{prefix}.k_norm", size=size),
        )
        self._gated = SigmoidGate(self._num_heads, size, context)
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * size,
            config.hidden_size,
            context,
            prefix=f"{prefix}.o_proj",
            bias=config.output_bias,
        )

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        q_and_gate, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        q, gate = q_and_gate.view(-1, self._num_heads, 2 * self._head_size).chunk(2, dim=-1)
        attended = self.attn(q.flatten(1), k, v, positions)
        return self.o_proj(self._gated(attended, gate))


class QwenDeltaNet(Layer):
    """A gated delta net; families say how their checkpoints store its input projections."""

    def __init__(self, config: QwenHybridConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
        if value_heads % key_heads:
            raise ValueError(
                f"linear_num_value_heads is {value_heads}; it must be a multiple of linear_num_key_heads, {key_heads}"
            )
        # With a key head a rank has all value heads that read it.
        keys_on_rank = context.split(key_heads, f"{prefix}: linear_num_key_heads")
        values_on_rank = keys_on_rank * (value_heads // key_heads)
        self.problem = problem = DeltaNetProblem(
            num_key_heads=keys_on_rank,
            num_value_heads=values_on_rank,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            conv_width=config.linear_conv_kernel_dim,
            dtype=context.dtype_name,
            num_drafts=context.num_drafts,
        )
        shards = self.make_shards(problem, context.collectives)
        self.qkv_proj = Linear(config.hidden_size, shards, context, prefix=f"{prefix}.in_proj")
        self.delta = DeltaNet(problem, context=context, prefix=f"{prefix}.delta")
        eps, size = config.rms_norm_eps, problem.value_dim
        self.norm = GatedRMSNorm(values_on_rank, size, eps, context, prefix=f"{prefix}.norm")
        self._sizes = [problem.channels, values_on_rank * size, values_on_rank, values_on_rank]
        self.out_proj = RowParallelLinear(value_heads * size, config.hidden_size, context, prefix=f"{prefix}.out_proj")

    @abstractmethod
    def make_shards(self, problem: DeltaNetProblem, ranks: Collectives) -> tuple[Shard, ...]:
        """The linears of the checkpoint that read the hidden states; `problem` is what this rank computes.

        Together they give queries, keys and values (all of each), then the gates of outputs, then what makes betas,
        and what makes decays.
        """

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        qkv, z, b, a = self.qkv_proj(hidden_states).split(self._sizes, dim=-1)
        return self.out_proj(self.norm(self.delta(qkv, a, b), z))


class QwenHybridDecoderLayer(LlamaDecoderLayer):
    delta_net: ClassVar[Callable[..., QwenDeltaNet]]

    def make_attention(
        self, config: QwenHybridConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> Any:
        if config.has_attention(layer_id):
            return QwenGatedAttention(config, context, layer_id=layer_id, prefix=prefix, rotary=rotary)
        return type(self).delta_net(config, context, prefix=f"{prefix.rpartition('.')[0]}.linear_attn")


class QwenHybridForCausalLM(LlamaForCausalLM):
    """Layers that predict further tokens, `mtp`, are left unread, whether or not the config declares any."""

    passed_over = ("mtp.",)

    @classmethod
    def names_prediction_layer(cls, num_layers: int, index: int) -> PredictionNames:
        return in_mtp(index)
