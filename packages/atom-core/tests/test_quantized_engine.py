"""The engine runs weights that it rounds as it loads, and those of quantized checkpoints, as the model alone does."""

from __future__ import annotations

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_models import load_model
from quantized_checkpoints import PUBLISHED, write_gpt_oss, write_quantized
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [27], list(range(5, 45))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("plain") / "m", hidden=96, intermediate=160)


def greedy(folder, **flags):
    engine = LLMEngine(str(folder), dtype="float32", max_model_len=128, num_kv_blocks=64, **flags)
    try:
        outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True))
        return [output["token_ids"] for output in outputs]
    finally:
        engine.close()


def greedy_alone(folder, quantization=None):
    model = load_model(folder, dtype="float32", quantization=quantization, progress=False)
    tokens = [list(prompt) for prompt in PROMPTS]
    for _ in range(12):
        for one, logits in zip(tokens, model.logits(tokens), strict=True):
            one.append(int(logits[-1].argmax()))
    return [one[len(prompt) :] for one, prompt in zip(tokens, PROMPTS, strict=True)]


@pytest.mark.parametrize("name", ["int8", "int4", "mxfp4"])
def test_weights_that_are_rounded_as_they_load_give_the_models_tokens(plain, name):
    assert greedy(plain, quantization=name) == greedy_alone(plain, name)


def test_experts_that_are_rounded_as_they_load_give_the_models_tokens(tmp_path):
    mixture = make_tiny("qwen3_moe", tmp_path / "m", moe_intermediate_size=32)
    assert greedy(mixture, quantization="mxfp4") == greedy_alone(mixture, "mxfp4")


def test_packed_experts_give_the_tokens_of_their_numbers(tmp_path):
    plain = make_tiny("gpt_oss", tmp_path / "plain", hidden_size=96, intermediate_size=64)
    quantized, twin = write_gpt_oss(tmp_path, plain)
    assert greedy(quantized) == greedy_alone(twin)


@pytest.mark.parametrize("name", ["fp8 tiles", "int4 packed"])
def test_a_quantized_checkpoint_gives_the_models_tokens(plain, tmp_path, name):
    quantized, twin = write_quantized(tmp_path, plain, PUBLISHED[name])
    assert greedy(quantized) == greedy_alone(twin)


def test_a_quantized_checkpoint_is_not_rounded_again(plain, tmp_path):
    quantized, _ = write_quantized(tmp_path, plain, PUBLISHED["fp8 tiles"])
    with pytest.raises(ValueError, match="'int8' was asked for, but the checkpoint is quantized as fp8 already"):
        greedy(quantized, quantization="int8")
