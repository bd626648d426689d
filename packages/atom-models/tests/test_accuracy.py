"""`ReferenceModel`: how a model is compared with another one on a text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from atom_models import LoadedModel, load_model
from atom_models.accuracy import AccuracyError, ReferenceModel, windows_of

# Longer than the rows that are compared at once, with a short window at the end.
TEXT = torch.randint(0, 128, (331,), generator=torch.Generator().manual_seed(3)).tolist()
WINDOWS = windows_of(TEXT, 150)


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> LoadedModel:
    return load_model(tiny_llama)


@pytest.fixture(scope="module")
def rounded(tiny_llama: Path) -> LoadedModel:
    return load_model(tiny_llama, quantization="int4")


def log_probs(model: LoadedModel, window: list[int]) -> torch.Tensor:
    return model.logits([window])[0][:-1].double().log_softmax(-1)


def test_perplexity_is_that_of_each_next_token(model: LoadedModel):
    surprise = [
        -log_probs(model, window)[i, window[i + 1]].item() for window in WINDOWS for i in range(len(window) - 1)
    ]
    baseline = ReferenceModel(model, WINDOWS)
    assert baseline.num_tokens == len(surprise)
    assert baseline.perplexity == pytest.approx(math.exp(sum(surprise) / len(surprise)))


def test_a_model_agrees_with_itself(model: LoadedModel):
    baseline = ReferenceModel(model, WINDOWS)
    found = baseline.measure(model, "itself")
    assert found.perplexity == baseline.perplexity
    assert (found.kl_divergence, found.top1_agreement) == (0.0, 1.0)


def test_divergence_and_agreement_are_those_of_whole_distributions(model: LoadedModel, rounded: LoadedModel):
    found = ReferenceModel(model, WINDOWS).measure(rounded, "int4")
    pairs = [(log_probs(model, window), log_probs(rounded, window)) for window in WINDOWS]
    plain, other = (torch.cat(rows) for rows in zip(*pairs, strict=True))
    divergence = torch.nn.functional.kl_div(other, plain, log_target=True, reduction="batchmean").item()
    assert found.kl_divergence == pytest.approx(divergence, rel=1e-3)
    assert found.top1_agreement == (plain.argmax(-1) == other.argmax(-1)).double().mean().item()
    assert found.kl_divergence > 0
    assert found.top1_agreement < 1


def test_a_cache_of_eight_bits_is_seen(model: LoadedModel, tiny_llama: Path):
    assert ReferenceModel(model, WINDOWS).measure(load_model(tiny_llama, kv_cache_dtype="fp8"), "fp8").kl_divergence > 0


def test_windows_begin_with_the_mark_of_a_text_and_take_all_of_it():
    assert windows_of([1, 2, 3, 4, 5], 3, [9]) == [[9, 1, 2], [9, 3, 4], [9, 5]]
    assert windows_of([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4]]


def test_a_text_that_fills_no_window_is_refused():
    with pytest.raises(AccuracyError, match="the text has 4 tokens and fills no window of 5"):
        windows_of([1, 2, 3, 4], 5)
    with pytest.raises(AccuracyError, match="a window of 2 tokens is too small: take at least 3"):
        windows_of([1, 2, 3, 4], 2, [9])


def test_another_vocabulary_is_refused(model: LoadedModel, tiny_family):
    with pytest.raises(AccuracyError, match="other has a vocabulary of"):
        ReferenceModel(model, WINDOWS).measure(load_model(tiny_family("qwen2")), "other")
