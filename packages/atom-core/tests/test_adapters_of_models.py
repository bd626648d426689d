"""Adapters for all linears of a model that take them answer as merged weights do, whatever the model is made of."""

from __future__ import annotations

import pytest

from atom_core import LLMEngine, SamplingParams
from tiny_adapters import adapter_of_all, make_adapter, merge

SMALL = {"dtype": "float32", "num_kv_blocks": 128, "max_num_seqs": 8, "num_threads": 1, "skip_tokenizer_init": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [list(range(3, 40)), list(range(50, 58)), list(range(100, 190))]
# Latents beside a mixture, and delta nets beside attention.
QUICK = ["deepseek_v3", "qwen3_next"]
OTHERS = ["qwen3_moe", "gpt_oss", "gemma3", "kimi_linear", "qwen3_5", "glm4_moe", "minimax_m2"]


def tokens(engine, adapter=None):
    return [answer["token_ids"] for answer in engine.generate(PROMPTS, GREEDY, use_tqdm=False, adapter=adapter)]


@pytest.mark.parametrize("family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_an_adapter_answers_as_merged_weights_do(family, tiny_family, tmp_path):
    model = tiny_family(family)
    folder = adapter_of_all(tmp_path / "adapter", model)
    with LLMEngine(str(merge(tmp_path / "merged", model, folder)), **SMALL) as engine:
        expected = tokens(engine)
    with LLMEngine(str(model), lora_modules={"a": str(folder)}, **SMALL) as engine:
        assert tokens(engine, "a") == expected
        assert tokens(engine) != expected


def test_matrices_of_experts_are_refused(tiny_family, tmp_path):
    def rename(tensors):
        name = next(iter(tensors))
        tensors["base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight"] = tensors.pop(name)

    model = tiny_family("qwen3_moe")
    folder = make_adapter(tmp_path, model, modules=["q_proj"], change=rename)
    with pytest.raises(ValueError, match="is of experts, whose matrices take no adapters"):
        LLMEngine(str(model), lora_modules={"a": str(folder)}, **SMALL)


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_packed_weights_take_adapters(tiny_llama, tmp_path, quantization):
    """What is added is as it is for plain weights: rounding alone moves the answers."""
    folder = make_adapter(tmp_path, tiny_llama, std=0.3)
    likelihoods = {}
    for held in ("none", quantization):
        with LLMEngine(str(tiny_llama), lora_modules={"a": str(folder)}, quantization=held, **SMALL) as engine:
            params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
            for name in (None, "a"):
                [answer] = engine.generate([PROMPTS[0]], params, use_tqdm=False, adapter=name)
                likelihoods[held, name] = [one.logprob for one in answer["prompt_logprobs"]]

    def apart(one, other):
        pairs = zip(likelihoods[one], likelihoods[other], strict=True)
        return sum(abs(first - second) for first, second in pairs) / len(PROMPTS[0])

    assert apart((quantization, "a"), ("none", "a")) < 0.2 * apart(("none", None), ("none", "a"))


def test_a_draft_model_guesses_without_the_adapter_and_changes_no_answer(tiny_llama, tmp_path):
    folder = make_adapter(tmp_path, tiny_llama, std=0.1)
    found = []
    speculation = {"method": "draft_model", "model": str(tiny_llama), "num_speculative_tokens": 2, "adaptive": False}
    for options in ({}, {"speculative_config": speculation}):
        with LLMEngine(str(tiny_llama), lora_modules={"a": str(folder)}, **SMALL, **options) as engine:
            found.append(tokens(engine, ["a", None, "a"]))
            assert (engine.stats.num_draft_tokens > 0) == bool(options)
    assert found[0] == found[1]
