"""`load_model`: the same words as the engine's for the same effect."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from atom_kernels.native import native_unavailable
from atom_kernels.platform import detect_platform
from atom_models import CheckpointError, load_model, mixer_layers
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

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


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_a_float8_cache_is_near_the_exact_one_and_not_equal(family, tiny_llama, tmp_path):
    folder = tiny_llama if family == "llama" else make_tiny(family, tmp_path / "m")
    exact, rounded = (load_model(folder, "float32", kv_cache_dtype=word, progress=False) for word in ("auto", "fp8"))
    served = {layer.plan.backend for layer in mixer_layers(rounded.model).values() if layer.plan is not None}
    assert served == {"native" if native_unavailable() is None else "reference"}
    [expected], [found] = exact.logits(TOKENS), rounded.logits(TOKENS)
    assert not torch.equal(found, expected)
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.98


@pytest.mark.skipif(native_unavailable() is not None, reason="no C compiler")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            partial(make_tiny_llama, head_dim=264),
            r"attn: no kernel here .*even head_dim up to 256, not 264.*such as auto",
        ),
        (
            partial(make_tiny, "deepseek_v3", kv_lora_rank=1040),
            "attn: no kernel here .*even latent_dim up to 1024, not",
        ),
    ],
    ids=["heads", "latents"],
)
def test_a_float8_cache_of_a_size_that_no_kernel_takes_is_refused_before_weights_are_read(make, reason, tmp_path):
    folder = make(tmp_path / "m")
    for file in folder.glob("*.safetensors"):
        file.write_bytes(b"")
    for word in ("fp8", "fp8_per_token_head"):
        with pytest.raises(CheckpointError, match=reason):
            load_model(folder, "float32", kv_cache_dtype=word, progress=False)


def test_another_word_is_refused_with_those_that_are_allowed(tiny_llama):
    with pytest.raises(ValueError, match="kv_cache_dtype is 'float8'; allowed are auto, bf16, fp8"):
        load_model(tiny_llama, kv_cache_dtype="float8")
