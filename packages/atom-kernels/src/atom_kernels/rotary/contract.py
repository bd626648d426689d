"""What rotation computes, in plain torch.

T: tokens, H: query heads, K: key heads, D: head size, R: rotary size, P: positions in the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RotaryProblem:
    """Attributes:
    num_heads, num_kv_heads, head_dim: how many heads queries and keys have, and their size.
    rotary_dim: leading elements of a head that are rotated; the others pass.
    dtype: the dtype of queries and keys.
    interleaved: pairs are (0, 1), (2, 3), ... (GPT-J) instead of (i, i + R/2) (GPT-NeoX, Llama).
    mrope_section: how many of the R/2 frequencies follow the temporal, height and width position; () for plain text.
    mrope_interleaved: frequencies take turns (Qwen3-VL) instead of lying in three runs (Qwen2-VL).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    dtype: torch.dtype
    interleaved: bool = False
    mrope_section: tuple[int, ...] = ()
    mrope_interleaved: bool = False


def apply_rotary(
    q_THD: torch.Tensor,
    k_TKD: torch.Tensor,
    positions_T: torch.Tensor,
    cos_sin_cache_PR: torch.Tensor,
    *,
    interleaved: bool = False,
    mrope_section: tuple[int, ...] = (),
    mrope_interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys rotated by the angles of their positions, in float32, rounded once.

    Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864; three positions a token: Wang et al. 2024,
    "Qwen2-VL", https://arxiv.org/abs/2409.12191.

    Args:
        q_THD, k_TKD: heads before rotation; not changed.
        positions_T: int64 [T], or [3, T] (temporal, height, width) with `mrope_section`.
        cos_sin_cache_PR: float32 of `rope_cos_sin`: cosines in the first R/2 columns, sines in the others.

    Raises:
        ValueError: [3, T] positions without a section for each frequency.
    """
    cos_sin = cos_sin_cache_PR[positions_T].float()
    if positions_T.dim() == 2:
        cos_sin = _pick_sections(cos_sin, mrope_section, mrope_interleaved)
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    return _rotate(q_THD, cos, sin, interleaved), _rotate(k_TKD, cos, sin, interleaved)


def _rotate(x_THD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    rotary_dim = 2 * cos.shape[-1]
    turning = x_THD[..., :rotary_dim].float()
    if interleaved:
        left, right = turning[..., ::2], turning[..., 1::2]
    else:
        left, right = turning.chunk(2, dim=-1)
    turned = (left * cos - right * sin, right * cos + left * sin)
    rotated = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    rotated = rotated.to(x_THD.dtype)
    return rotated if rotary_dim == x_THD.shape[-1] else torch.cat((rotated, x_THD[..., rotary_dim:]), dim=-1)


def _pick_sections(cos_sin_3TR: torch.Tensor, section: tuple[int, ...], interleaved: bool) -> torch.Tensor:
    axes = axes_of_frequencies(section, cos_sin_3TR.shape[-1] // 2, interleaved=interleaved)
    index = axes.repeat(2).to(cos_sin_3TR.device).expand(1, cos_sin_3TR.shape[1], -1)
    return cos_sin_3TR.gather(0, index).squeeze(0)


def axes_of_frequencies(section: tuple[int, ...], num_frequencies: int, *, interleaved: bool) -> torch.Tensor:
    """int64 ``[num_frequencies]``: which of three positions (0 time, 1 height, 2 width) each frequency follows.

    Args:
        section, interleaved: see `RotaryProblem`.

    Raises:
        ValueError: there are not three sections, or they do not add up to the frequencies.
    """
    if len(section) != 3 or sum(section) != num_frequencies:
        raise ValueError(f"positions [3, T] need three mrope sections that add up to {num_frequencies}, got {section}")
    if not interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(section))
    # t h w t h w ... while height and width last, then only t.
    axes = torch.zeros(num_frequencies, dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * section[axis] : 3] = axis
    return axes
