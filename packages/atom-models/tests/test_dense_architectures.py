"""The dense relatives of Llama: what sets each apart, held against transformers in float32."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from atom_models import CheckpointError, load_model, mixer_layers
from atom_models.architectures.gemma3 import Gemma3Config
from atom_models.architectures.qwen2 import Qwen2Config
from atom_models.config.reading import read_config
from atom_models.paged_run import PagedRun, SequenceStep
from tiny_architectures import make_tiny, reference_model

pytestmark = pytest.mark.usefixtures("quiet_transformers")

CASES = {
    "mistral": ("mistral", {}),
    "mistral, a window of one block": ("mistral", {"sliding_window": 16}),
    "mistral, one token sees itself": ("mistral", {"sliding_window": 1}),
    "mistral, no window": ("mistral-full", {}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows from a layer on": ("qwen2-window", {}),
    "qwen2, windows by layer": (
        "qwen2-window",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    "gemma3": ("gemma3", {}),
    "gemma3, default ropes": ("gemma3", {"rope_parameters": None}),
    "gemma3, seven layers": ("gemma3", {"num_hidden_layers": 7, "sliding_window_pattern": 6}),
    "gemma3, soft cap": ("gemma3", {"final_logit_softcapping": 2.0}),
    "gemma3, head of its own": ("gemma3", {"tie_word_embeddings": False, "attention_bias": True}),
}


def make_tokens(*lengths, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers_within_and_beyond_the_window(case, tmp_path):
    family, overrides = CASES[case]
    folder = make_tiny(family, tmp_path, **overrides)
    tokens = make_tokens(1, 7, 13, 14, 77)
    theirs = reference_model(folder)
    # Published configs leave to a rule what transformers spells out for each layer.
    loaded = load_model(folder / "transformers" if "layer_types" in overrides else folder, progress=False)
    for ids, ours in zip(tokens, loaded.logits(tokens), strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0]
        assert (ours - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@pytest.mark.parametrize("family", ["mistral", "qwen3", "gemma3"])
def test_a_decode_beyond_the_window_equals_the_whole(family, tmp_path):
    loaded = load_model(make_tiny(family, tmp_path), progress=False)
    tokens = make_tokens(61)[0]
    whole = PagedRun(loaded.model, 4).step([SequenceStep(tokens, 0, range(4))])[0]
    run, cached, parts = PagedRun(loaded.model, 4), 0, []
    for length in [7, 20, *[1] * 34]:
        parts += run.step([SequenceStep(tokens[cached : cached + length], cached, range(4))])
        cached += length
    assert torch.allclose(torch.cat(parts), whole, atol=1e-4)


def test_layers_ask_for_a_cache_of_their_window(tmp_path):
    problems = [layer.problem for layer in layers_of(make_tiny("gemma3", tmp_path))]
    assert [problem.sliding_window for problem in problems] == [13, 13, None, 13]
    assert {problem.layout.block_bytes for problem in problems} == {2 * 16 * 1 * 24 * 4}


def test_an_older_gemma_config_means_the_same(tmp_path):
    folder = make_tiny("gemma3", tmp_path)
    before = load_model(folder, progress=False).logits(make_tokens(40))[0]
    config = json.loads((folder / "config.json").read_text())
    for name in ("rope_parameters", "layer_types", "rope_theta", "rope_local_base_freq", "rope_scaling"):
        config.pop(name, None)
    config.update(rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window_pattern=3)
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(load_model(folder, progress=False).logits(make_tokens(40))[0], before)


def test_embeddings_are_scaled_in_the_dtype_of_the_model(tmp_path):
    folder = make_tiny("gemma3", tmp_path, hidden_size=48)
    ids = torch.tensor([5, 6])
    for dtype in (torch.float32, torch.bfloat16):
        model: Any = load_model(folder, dtype, progress=False).model
        weight = reference_model(folder).model.embed_tokens.weight.detach().to(dtype)
        expected = weight[ids] * torch.tensor(48**0.5).to(dtype)
        assert torch.equal(model.embed_input_ids(ids), expected)


def test_qwen2_has_windows_only_where_it_uses_them():
    fields = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3}
    fields |= {"num_attention_heads": 2, "sliding_window": 5, "max_window_layers": 2}
    unused, used = (read_config(Qwen2Config, fields | {"use_sliding_window": use}) for use in (False, True))
    assert [unused.window_of(layer_id) for layer_id in range(3)] == [None, None, None]
    assert [used.window_of(layer_id) for layer_id in range(3)] == [None, None, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"]}, "layer_types has 1 entries for num_hidden_layers 4"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types\\[0\\] is 'linear_attention'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes, message, tmp_path):
    folder = make_tiny("gemma3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=message):
        load_model(folder, progress=False)


def test_published_gemma_configs_that_state_little_are_understood():
    config = read_config(Gemma3Config, {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 7})
    assert config.types == ("sliding_attention",) * 5 + ("full_attention", "sliding_attention")
    assert config.rope_of("full_attention")["rope_theta"] == 1e6
    assert config.rope_of("sliding_attention")["rope_theta"] == 1e4


def layers_of(folder):
    return mixer_layers(load_model(folder, progress=False).model).values()
