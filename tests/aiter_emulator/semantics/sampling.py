"""Sampling from logits and probabilities."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from .checks import (
    check_contiguous,
    check_dtype,
    check_rows,
    check_shape,
    detect_unless,
    refuse_dtype,
    refuse_or_misread,
)

LOGITS = (torch.float32, torch.float16, torch.bfloat16)
GREEDY_VECTOR, MIXED_VECTOR = 16, 4


def greedy_sample(out: Tensor, input: Tensor) -> None:
    """The first of the largest logits of each row."""
    _check_logits(out, input, GREEDY_VECTOR)
    out.copy_(input.float().argmax(-1))


def mixed_sample(
    out: Tensor, input: Tensor, temperature: Tensor, lambd: float, generator: Generator | None, eps: float
) -> None:
    """As `mixed_sample_outer_exponential` with noise of its own, from torch's generator."""
    noise = torch.empty(input.shape, dtype=torch.float32).exponential_(lambd, generator=generator)
    mixed_sample_outer_exponential(out, input, noise, temperature, eps)


def mixed_sample_outer_exponential(
    out: Tensor, input: Tensor, exponentials: Tensor, temperature: Tensor, eps: float
) -> None:
    """Rows of temperature 0 get the largest logit, others ``argmax(softmax(x / T) / (noise + eps))``."""
    random = _random(out, input, exponentials, temperature, eps)
    out.copy_(torch.where(temperature == 0, input.float().argmax(-1), random))


def random_sample_outer_exponential(
    out: Tensor, input: Tensor, exponentials: Tensor, temperatures: Tensor, eps: float
) -> None:
    """The same without the special row: temperature 0 is taken as 1e-5."""
    out.copy_(_random(out, input, exponentials, temperatures, eps))


def top_k_renorm_probs(probs: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int) -> Tensor:
    """Probabilities below the k-th largest become 0, the others sum to 1; equals of the k-th stay."""
    probs = _checked_probs(probs)
    kept = torch.where(probs >= _kth_largest(probs, maybe_top_k_arr, top_k_val), probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_sampling_from_probs(
    probs: Tensor, indices: Tensor | None, maybe_top_p_arr: Tensor | None, top_p_val: float
) -> Tensor:
    """A draw from the smallest set of the likeliest tokens whose sum reaches p."""
    return _drawn(_checked_probs(probs), indices, None, 0, maybe_top_p_arr, top_p_val)


def top_k_top_p_sampling_from_probs(
    probs: Tensor,
    indices: Tensor | None,
    maybe_top_k_arr: Tensor | None,
    top_k_val: int,
    maybe_top_p_arr: Tensor | None,
    top_p_val: float,
) -> Tensor:
    """A draw from the tokens that both filters keep; each looks at the unfiltered probabilities."""
    probs = _checked_probs(probs)
    return _drawn(probs, indices, maybe_top_k_arr, top_k_val or probs.shape[1], maybe_top_p_arr, top_p_val)


def _random(out: Tensor, input: Tensor, exponentials: Tensor, temperature: Tensor, eps: float) -> Tensor:
    _check_logits(out, input, MIXED_VECTOR)
    check_shape("temperature", temperature, len(input))
    check_contiguous("temperature", temperature)
    refuse_or_misread("temperature", temperature, torch.float32)
    check_shape("exponentials", exponentials, *input.shape)
    check_rows("exponentials", exponentials)
    refuse_or_misread("exponentials", exponentials, torch.float32)
    probs = (input.float() / temperature.clamp(min=1e-5)[:, None]).softmax(-1)
    return (probs / (exponentials + eps)).argmax(-1)


def _check_logits(out: Tensor, input: Tensor, vector: int) -> None:
    refuse_dtype("input", input, *LOGITS)
    check_shape("input", input, None, None)
    check_rows("input", input)
    refuse_or_misread("out", out, torch.int32)
    check_shape("out", out, len(input))
    check_contiguous("out", out)
    wide = input.shape[1] % vector == 0
    detect_unless(wide, f"{input.shape[1]} logits end within a vector of {vector}: its rest is read as 0 and may win")


def _checked_probs(probs: Tensor) -> Tensor:
    check_shape("probs", probs, None, None)
    check_contiguous("probs", probs)
    return probs.float()


def _kth_largest(probs: Tensor, k_of_rows: Tensor | None, k: int) -> Tensor:
    ranked = probs.sort(-1, descending=True).values
    if k_of_rows is None:
        detect_unless(k > 0, f"top-k of {k} keeps nothing")
        return ranked[:, min(k, probs.shape[1]) - 1, None]
    check_shape("maybe_top_k_arr", k_of_rows, len(probs))
    check_dtype("maybe_top_k_arr", k_of_rows, torch.int32, torch.int64)
    return ranked.gather(1, k_of_rows.long().clamp(1, probs.shape[1])[:, None] - 1)


def _drawn(
    probs: Tensor, indices: Tensor | None, k_of_rows: Tensor | None, k: int, p_of_rows: Tensor | None, p: float
) -> Tensor:
    if indices is not None:
        check_dtype("indices", indices, torch.int32)
        probs = probs[indices.long()]
    kept = _top_p_kept(probs, p_of_rows, p)
    if k_of_rows is not None or k:
        kept &= probs >= _kth_largest(probs, k_of_rows, k)
    return torch.multinomial(torch.where(kept, probs, 0.0), 1).squeeze(1).int()


def _top_p_kept(probs: Tensor, p_of_rows: Tensor | None, p: float) -> Tensor:
    if p_of_rows is not None:
        check_shape("maybe_top_p_arr", p_of_rows, len(probs))
    limit = p if p_of_rows is None else p_of_rows.float()[:, None]
    ranked, order = probs.sort(-1, descending=True)
    before = ranked.cumsum(-1) - ranked
    return torch.zeros_like(probs, dtype=torch.bool).scatter_(1, order, before < limit)
