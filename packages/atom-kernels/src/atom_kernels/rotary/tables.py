"""Angles of rotary embeddings for every published scaling, as one table of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RopeConfig:
    """Rotary parameters under their Hugging Face names.

    Attributes:
        head_dim: size of a head; `partial_rotary_factor` of it is rotated.
        max_position: positions that the table covers: what will be served.
        rope_theta: base of the frequencies.
        rope_type: a key of `SCALINGS`.
        max_position_embeddings: what the model was declared for; `max_position` where None.
        factor .. attention_factor: parameters of the scalings; see each function of this module.
        long_factor, short_factor: LongRoPE, one number for each frequency.
    """

    head_dim: int
    max_position: int
    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    max_position_embeddings: int | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    long_factor: tuple[float, ...] = ()
    short_factor: tuple[float, ...] = ()

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        head_dim: int,
        max_position_embeddings: int,
        max_position: int | None = None,
    ) -> RopeConfig:
        """From a checkpoint's ``rope_parameters`` (or older ``rope_scaling`` with ``rope_theta`` put in).

        Args:
            parameters: the mapping; keys that are not ours (mrope's, say) are left to the caller.
            max_position_embeddings: the checkpoint's.
            max_position: positions to serve; None is `max_position_embeddings`.

        Raises:
            ValueError: an unknown rope_type, or a parameter that the type needs is missing.
        """
        ours = cls.__dataclass_fields__
        known = {name: value for name, value in parameters.items() if name in ours and value is not None}
        known.update(head_dim=head_dim, max_position_embeddings=max_position_embeddings)
        known["max_position"] = max_position or max_position_embeddings
        known["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
        # Qwen2-VL calls its sections a rope type; the angles are the default ones.
        known["rope_type"] = {"mrope": "default", "su": "longrope", "ntk": "dynamic"}.get(
            known["rope_type"], known["rope_type"]
        )
        for name in ("long_factor", "short_factor"):
            known[name] = tuple(known.get(name, ()))
        config = cls(**known)
        config.check()
        return config

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        if self.rope_type == "proportional":
            return self.head_dim
        return int(self.head_dim * self.partial_rotary_factor)

    def check(self) -> None:
        """Raise ValueError naming what is wrong."""
        if self.rope_type not in SCALINGS:
            raise ValueError(f"rope_type {self.rope_type!r} is not one of {', '.join(sorted(SCALINGS))}")
        for name in _NEEDS.get(self.rope_type, ()):
            if not getattr(self, name):
                raise ValueError(f"rope_type {self.rope_type!r} needs the parameter {name}")
        if self.rotary_dim % 2:
            raise ValueError(f"an odd number of elements cannot be rotated: {self.rotary_dim}")
        if self.rope_type == "longrope":
            for name in ("long_factor", "short_factor"):
                if len(getattr(self, name)) != self.rotary_dim // 2:
                    raise ValueError(f"{name} has {len(getattr(self, name))} numbers, not {self.rotary_dim // 2}")


def rope_cos_sin(config: RopeConfig) -> torch.Tensor:
    """float32 ``[max_position, rotary_dim]``: cosines in the first half of the columns, sines in the second.

    Both are multiplied by the scaling's attention factor, as the published models apply it.
    """
    inv_freq, attention_factor = rope_frequencies(config)
    angles = torch.outer(torch.arange(config.max_position, dtype=torch.float32), inv_freq)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor


def rope_frequencies(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """(radians per position, float32 ``[rotary_dim / 2]``; factor on cosines and sines)."""
    config.check()
    return SCALINGS[config.rope_type](config)


def _default(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864, section 3.2.2."""
    return _frequencies(config.rope_theta, config.rotary_dim), 1.0


def _linear(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """Positions divided by `factor`. Chen et al. 2023, "Position Interpolation", https://arxiv.org/abs/2306.15595."""
    return _frequencies(config.rope_theta, config.rotary_dim) / (config.factor or 1.0), 1.0


def _dynamic(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """NTK-aware base for the length served. Peng et al. 2023, https://arxiv.org/abs/2309.00071, appendix B.2.

    The published rule takes the length of each sequence; cached keys cannot be turned again, so the table is that of
    the longest sequence that will be served, and equals the default one up to `max_position_embeddings`.
    """
    dim, factor = config.rotary_dim, config.factor or 1.0
    trained = config.original_max_position_embeddings or config.max_position_embeddings or config.max_position
    stretch = max(config.max_position, trained) / trained
    base = config.rope_theta * (factor * stretch - (factor - 1)) ** (dim / (dim - 2))
    return _frequencies(base, dim), 1.0


def _llama3(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """Long waves are interpolated, short ones kept, a ramp between.

    Dubey et al. 2024, "The Llama 3 Herd of Models", https://arxiv.org/abs/2407.21783; formula as in
    https://github.com/meta-llama/llama-models (models/llama3/model.py, apply_scaling).
    """
    inv_freq = _frequencies(config.rope_theta, config.rotary_dim)
    factor, trained = config.factor or 1.0, config.original_max_position_embeddings or config.max_position
    rotations = trained * inv_freq / (2 * math.pi)
    ramp = (rotations - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    ramp = ramp.clamp(0.0, 1.0)
    return (1 - ramp) * inv_freq / factor + ramp * inv_freq, 1.0


def _yarn(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """Interpolation by parts and a factor on the attention's logits.

    Peng et al. 2023, "YaRN", https://arxiv.org/abs/2309.00071, sections 3.2 to 3.4; `mscale` and `mscale_all_dim` as
    in DeepSeek-V2, https://arxiv.org/abs/2405.04434 and its published model code.
    """
    dim, base = config.rotary_dim, config.rope_theta
    trained = config.original_max_position_embeddings or config.max_position
    factor = config.factor or (config.max_position_embeddings or config.max_position) / trained

    def dimension_of(rotations: float) -> float:
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # A ramp of no width would divide by zero.
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    ramp = ramp.clamp(0.0, 1.0)
    inv_freq = _frequencies(base, dim)
    return ramp * inv_freq / factor + (1 - ramp) * inv_freq, _yarn_attention_factor(config, factor)


def _yarn_attention_factor(config: RopeConfig, factor: float) -> float:
    def temperature(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return temperature(config.mscale) / temperature(config.mscale_all_dim)
    return temperature(1.0)


def _longrope(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """A searched factor for each frequency. Ding et al. 2024, "LongRoPE", https://arxiv.org/abs/2402.13753.

    Which of the two lists applies is decided once, by the length served: keys in the cache cannot be turned again.
    """
    trained = config.original_max_position_embeddings or config.max_position
    factors = config.long_factor if config.max_position > trained else config.short_factor
    inv_freq = _frequencies(config.rope_theta, config.rotary_dim) / torch.tensor(factors, dtype=torch.float32)
    factor = config.factor or (config.max_position_embeddings or config.max_position) / trained
    if config.attention_factor is not None:
        return inv_freq, config.attention_factor
    return inv_freq, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))


def _proportional(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """Frequencies of the whole head, of which only the leading share turns; the rest has frequency zero (Gemma 4)."""
    turning = int(config.partial_rotary_factor * config.head_dim // 2)
    inv_freq = _frequencies(config.rope_theta, config.head_dim)
    inv_freq[turning:] = 0.0
    return inv_freq / (config.factor or 1.0), 1.0


def _frequencies(base: float, dim: int) -> torch.Tensor:
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


SCALINGS: dict[str, Callable[[RopeConfig], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}

_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("original_max_position_embeddings", "long_factor", "short_factor"),
}
