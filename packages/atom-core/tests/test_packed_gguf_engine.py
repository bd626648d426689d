"""The engine runs packed weights of GGUF files: tokens are those of their plain numbers, however steps are cut."""

from __future__ import annotations

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_models import load_model
from converted_gguf import write_gguf
from tiny_architectures import make_tiny

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [27], list(range(5, 45))]
FAMILIES = {
    "llama": {"hidden_size": 256, "intermediate_size": 256},
    "qwen2": {"hidden_size": 256, "intermediate_size": 256},
    "qwen3": {"hidden_size": 256, "intermediate_size": 256},
    "gemma3": {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 7,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 24,
    },
    "qwen3_moe": {"hidden_size": 256, "moe_intermediate_size": 256},
    "mixtral": {"hidden_size": 256, "intermediate_size": 256},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_file("llama", tmp_path_factory.mktemp("llama"), "Q4_K")


def make_file(family, folder, quant):
    """Values are of another type than queries and keys."""
    made = make_tiny(family, folder / "model", **FAMILIES[family])
    return write_gguf(made, folder / "m.gguf", quant=quant, others={"attn_v": "Q6_K"})


def tokens(path, prompts=PROMPTS, *, temperature=0.0, **flags):
    flags = {"dtype": "float32", "max_model_len": 128, "num_kv_blocks": 64} | flags
    engine = LLMEngine(str(path), **flags)
    try:
        params = SamplingParams(max_tokens=12, temperature=temperature, seed=7, ignore_eos=True)
        return [output["token_ids"] for output in engine.generate(prompts, params)]
    finally:
        engine.close()


def tokens_of_plain_numbers(path):
    model = load_model(path, "float32", quantization="none", progress=False)
    found = [list(prompt) for prompt in PROMPTS]
    for _ in range(12):
        for one, logits in zip(found, model.logits(found), strict=True):
            one.append(int(logits[-1].argmax()))
    return [one[len(prompt) :] for one, prompt in zip(found, PROMPTS, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_file_gives_the_tokens_of_its_plain_numbers(family, tmp_path):
    path = make_file(family, tmp_path, "Q4_K")
    assert tokens(path) == tokens_of_plain_numbers(path)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_gets_the_same_tokens_alone_in_pieces_and_without_shared_prefixes(llama, temperature):
    expected = tokens(llama, temperature=temperature)
    assert [tokens(llama, [prompt], temperature=temperature)[0] for prompt in PROMPTS] == expected
    for flags in ({"max_num_batched_tokens": 16}, {"enable_prefix_caching": False}, {"num_kv_blocks": 9}):
        assert tokens(llama, temperature=temperature, **flags) == expected


def test_random_weights_take_the_place_of_a_files(llama):
    """As timings without a download want them."""
    assert all(len(found) == 12 for found in tokens(llama, load_dummy=True))
