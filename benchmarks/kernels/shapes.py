"""Shapes of published models, as far as single operators can tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.activation import Activation
from atom_kernels.formats import Float8, Integers, Mxfp4, WeightFormat


@dataclass(frozen=True)
class Mixture:
    """Experts of a layer.

    Attributes:
        shared_size: the intermediate size of all shared ones together, 0 for none.
        packed: a number format in which the experts are published, beside bfloat16.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    activation: Activation = Activation.SILU
    bias: bool = False
    shared_size: int = 0
    packed: WeightFormat | None = None


@dataclass(frozen=True)
class LatentHeads:
    """Heads of multi-head latent attention."""

    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class SparseHeads:
    """Heads of latent attention over what an index chooses, and those of the index."""

    num_heads: int
    latent: LatentHeads
    index_heads: int
    index_head_dim: int = 128
    top_k: int = 2048


@dataclass(frozen=True)
class DeltaHeads:
    """Heads of a delta net, and the width of the convolution before them; keys and values are of one size."""

    num_key_heads: int
    num_value_heads: int
    head_dim: int
    channel_gates: bool = False
    conv_width: int = 4


@dataclass(frozen=True)
class ModelShape:
    """One decoder layer and the head over the vocabulary, in bfloat16.

    Attributes:
        intermediate_size: the size inside a dense MLP, 0 where all layers are mixtures.
        sliding_window: the window of every other layer, None where all see everything.
        packed_linears: formats of weights in which linears are measured too, each with that of rounded inputs.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int = 0
    qk_norm: bool = False
    bias: bool = False
    sinks: bool = False
    sliding_window: int | None = None
    mixture: Mixture | None = None
    latent: LatentHeads | None = None
    packed_linears: tuple[tuple[WeightFormat, WeightFormat | None], ...] = ()

    @property
    def linears(self) -> dict[str, tuple[int, int, bool]]:
        """Dense linears by name: (inputs, outputs, bias)."""
        hidden, heads = self.hidden_size, self.num_heads * self.head_dim
        found = {"lm_head": (hidden, self.vocab_size, False)}
        if self.latent is None:
            found["qkv_proj"] = (hidden, heads + 2 * self.num_kv_heads * self.head_dim, self.bias)
            found["o_proj"] = (heads, hidden, self.bias)
        else:
            latent = self.latent
            found["q_proj"] = (hidden, self.num_heads * (latent.nope_head_dim + latent.rope_head_dim), False)
            found["kv_a_proj"] = (hidden, latent.kv_lora_rank + latent.rope_head_dim, False)
            found["o_proj"] = (self.num_heads * latent.v_head_dim, hidden, False)
        if self.mixture is not None:
            found["router"] = (hidden, self.mixture.num_experts, self.bias)
        shared = self.mixture.shared_size if self.mixture else 0
        if size := shared or self.intermediate_size:
            found["gate_up_proj"], found["down_proj"] = (hidden, 2 * size, False), (size, hidden, False)
        return found


MODELS = {
    "Qwen3-0.6B": ModelShape(1024, 16, 8, 128, 151936, 3072, qk_norm=True),
    "Qwen3-8B": ModelShape(
        *(4096, 32, 8, 128, 151936, 12288),
        qk_norm=True,
        packed_linears=((Float8(), Float8()), (Float8(128, 128), Float8(1, 128)), (Integers(4, 128), None)),
    ),
    "Llama-3-8B": ModelShape(4096, 32, 8, 128, 128256, 14336),
    "Qwen3-30B-A3B": ModelShape(
        2048, 32, 4, 128, 151936, qk_norm=True, mixture=Mixture(128, 8, 768, packed=Float8(128, 128))
    ),
    "gpt-oss-20b": ModelShape(
        *(2880, 64, 8, 64, 201088),
        bias=True,
        sinks=True,
        sliding_window=128,
        mixture=Mixture(32, 4, 2880, Activation.SWIGLU_OAI, bias=True, packed=Mxfp4()),
    ),
    "DeepSeek-V2-Lite": ModelShape(
        *(2048, 16, 16, 192, 102400),
        mixture=Mixture(64, 6, 1408, shared_size=2816),
        latent=LatentHeads(512, 128, 64, 128),
    ),
}

# Models of which only sparse attention is measured.
SPARSE_ATTENTION = {
    "DeepSeek-V3.2": SparseHeads(128, LatentHeads(512, 128, 64, 128), 64),
    "GLM-5": SparseHeads(64, LatentHeads(512, 192, 64, 256), 32),
}
# Models of which only the delta nets are measured.
DELTA_NETS = {
    "Qwen3-Next-80B": DeltaHeads(16, 32, 128),
    "Kimi-Linear-48B": DeltaHeads(32, 32, 128, channel_gates=True),
}
