"""`load_model`: the same words as the engine's for the same effect."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.platform import detect_platform
from atom_models import load_model, mixer_layers

TOKENS = [[5, 6, 7, 8] * 8]


def cache_dtypes(loaded):
    return {layer.problem.kv_cache_dtype for layer in mixer_layers(loaded.model).values()}


@pytest.mark.parametrize(
    ("asked", "stored"), [("auto", "float32"), ("bf16", "bfloat16"), ("fp8", detect_platform().float8)]
)
def test_a_cache_is_kept_in_the_dtype_that_its_word_says(tiny_llama, asked, stored):
    loaded = load_model(tiny_llama, "float32", kv_cache_dtype=asked, progress=False)
    assert cache_dtypes(loaded) == {stored}
    [logits] = loaded.logits(TOKENS)
    assert torch.isfinite(logits).all()


def test_a_float8_cache_is_near_the_exact_one_and_not_equal(tiny_llama):
    exact, rounded = (
        load_model(tiny_llama, "float32", kv_cache_dtype=word, progress=False) for word in ("auto", "fp8")
    )
    [expected], [found] = exact.logits(TOKENS), rounded.logits(TOKENS)
    assert not torch.equal(found, expected)
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.98


def test_another_word_is_refused_with_those_that_are_allowed(tiny_llama):
    with pytest.raises(ValueError, match="kv_cache_dtype is 'float8'; allowed are auto, bf16, fp8"):
        load_model(tiny_llama, kv_cache_dtype="float8")
