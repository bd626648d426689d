"""Llama: Touvron et al. 2023, https://arxiv.org/abs/2302.13971 and 2307.09288; Llama 3, https://arxiv.org/abs/2407.21783."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from atom_models.build_context import BuildContext
from atom_models.decoder.causal_lm import Decoder, DecoderForCausalLM
from atom_models.layers import (
    Attention,
    GatedActivation,
    Layer,
    MergedColumnParallelLinear,
    MoE,
    MoEConfig,
    Normed,
    QKVParallelLinear,
    Residual,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    Term,
    make_rotary,
)

if TYPE_CHECKING:
    from atom_models.layers.norms.norm import MayNorm


@dataclass(frozen=True)
class LlamaConfig:
    """Fields of `config.json`, under their Hugging Face names. Relatives state in properties what they do otherwise."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 2048
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)

    # Added to the weights of norms, for models that store them less one.
    norm_offset: ClassVar[float] = 0.0
    # Each head has a learned logit that takes part in the softmax and has no value.
    has_sinks: ClassVar[bool] = False

    @property
    def needs_even_heads(self) -> bool:
        """Whether layers have other weights of each head, which ranks share evenly."""
        return self.has_sinks

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> Mapping[str, Any]:
        """Parameters of the rotation."""
        return self.rope_parameters

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def output_bias(self) -> bool:
        return self.attention_bias

    @property
    def has_head_norms(self) -> bool:
        """Whether each head of q and k is normed before it rotates."""
        return False

    @property
    def attention_scale(self) -> float | None:
        """The factor on ``q @ k``; None is ``head_size ** -0.5``."""
        return None

    @property
    def soft_cap(self) -> float | None:
        """The bound of attention scores, see `Attention`."""
        return None

    @property
    def activation(self) -> str:
        """The Hugging Face name of the activation in MLPs and experts."""
        return self.hidden_act

    def window_of(self, layer_id: int) -> int | None:
        """Tokens that a query of this layer sees, itself included; None is all."""
        return None

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        """The mixture of experts in this layer; None where it has an MLP."""
        return None


def llama_norm(
    config: LlamaConfig,
    context: BuildContext,
    *,
    prefix: str,
    size: int | None = None,
    feeds: MayNorm | None = None,
) -> RMSNorm:
    """A norm over `size` elements, or over hidden states."""
    size, eps, offset = size or config.hidden_size, config.rms_norm_eps, config.norm_offset
    return RMSNorm(size, eps, context, prefix=prefix, feeds=feeds, weight_offset=offset)


class LlamaAttention(Layer):
    """Args:
    in_features: size of what q, k and v are made from; None is the hidden size.
    """

    def __init__(
        self,
        config: LlamaConfig,
        context: BuildContext,
        *,
        layer_id: int,
        prefix: str,
        rotary: Rotary | None,
        in_features: int | None = None,
    ) -> None:
        super().__init__()
        q_norm = k_norm = None
        if config.has_head_norms:
            q_norm = llama_norm(config, context, prefix=f"{prefix}.q_norm", size=config.head_size)
            k_norm = llama_norm(config, context, prefix=f"{prefix}.k_norm", size=config.head_size)
        self.qkv_proj = QKVParallelLinear(
            in_features or config.hidden_size,
            head_dim=config.head_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.kv_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.qkv_bias,
            evenly=config.needs_even_heads,
        )
        self.attn = Attention(
            self.qkv_proj.num_heads,
            self.qkv_proj.num_kv_heads,
            config.head_size,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
            q_norm=q_norm,
            k_norm=k_norm,
            scale=config.attention_scale,
            sliding_window=config.window_of(layer_id),
            sinks=config.has_sinks,
            soft_cap=config.soft_cap,
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_size,
            config.hidden_size,
            context,
            prefix=f"{prefix}.o_proj",
            bias=config.output_bias,
            columns=self.qkv_proj.query_elements,
        )

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v, positions))


class LlamaMLP(Layer):
    def __init__(self, config: LlamaConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            {"gate_proj": size, "up_proj": size},
            context,
            prefix=f"{prefix}.gate_up_proj",
            bias=config.mlp_bias,
        )
        self.down_proj = RowParallelLinear(
            size, config.hidden_size, context, prefix=f"{prefix}.down_proj", bias=config.mlp_bias
        )
        size_here = self.gate_up_proj.out_features // 2
        self.act = GatedActivation(config.activation, size_here, context, after=self.gate_up_proj, feeds=self.down_proj)
        # Another problem, with other limits, where the linear ends with the activation.
        self.max_normed_rows, self.row_rounding = self.gate_up_proj.max_normed_rows, self.gate_up_proj.row_rounding

    def forward(self, hidden_states: Normed) -> Term:
        return self.down_proj(self.act(self.gate_up_proj(hidden_states)))


class LlamaDecoderLayer(Layer):
    def __init__(
        self, config: LlamaConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        self.self_attn = self.make_attention(
            config, context, layer_id=layer_id, prefix=f"{prefix}.self_attn", rotary=rotary
        )
        experts = config.experts_of(layer_id)
        if experts is None:
            self.mlp = LlamaMLP(config, context, prefix=f"{prefix}.mlp")
        else:
            self.mlp = MoE(experts, context, prefix=f"{prefix}.{experts.name}")
        self.input_layernorm = llama_norm(
            config, context, prefix=f"{prefix}.input_layernorm", feeds=self.self_attn.qkv_proj
        )
        self.post_attention_layernorm = llama_norm(
            config, context, prefix=f"{prefix}.post_attention_layernorm", feeds=self.mlp
        )

    def make_attention(self, config: Any, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary) -> Any:
        """The attention of layer `layer_id`; relatives make theirs."""
        return LlamaAttention(config, context, layer_id=layer_id, prefix=prefix, rotary=rotary)

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        residual = residual.plus(self.self_attn(positions, self.input_layernorm(residual)))
        return residual.plus(self.mlp(self.post_attention_layernorm(residual)))

    def run_alone(self, positions: torch.Tensor, residual: Residual) -> Residual:
        """As `forward`, where it is the only layer: nothing comes to it from another."""
        return self(positions, residual)


class LlamaForCausalLM(DecoderForCausalLM):
    """Relatives name their config, and their decoder layer, and the loop over these, where it is another."""

    config_class: type[LlamaConfig] = LlamaConfig
    decoder_layer: Callable[..., Layer] = LlamaDecoderLayer
    decoder: type[Decoder] = Decoder

    def make_model(self, config: LlamaConfig, context: BuildContext) -> Decoder:
        self.rotary = make_rotary(config.rope, config.head_size, config.max_position_embeddings, context=context)
        make_layer, prefix = type(self).decoder_layer, self.decoder_prefix
        layers = [
            make_layer(config, context, layer_id=layer_id, prefix=f"{prefix}.layers.{layer_id}", rotary=self.rotary)
            for layer_id in context.stage.layers(config.num_hidden_layers)
        ]
        norm = self.make_norm(config, context, prefix=f"{prefix}.norm")
        return self.decoder(config, context, layers=layers, norm=norm, prefix=prefix)

    def make_norm(self, config: Any, context: BuildContext, *, prefix: str) -> Layer:
        """The last norm; relatives make theirs."""
        return llama_norm(config, context, prefix=prefix)
