"""Ours = transformers on tiny random Llamas in float32: logits within 1e-4 of their range, greedy tokens equal."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap

import pytest
import torch
import transformers

from atom_models import load_model
from atom_models.paged_run import PagedRun, SequenceStep
from busy_machine import waiting_after
from tiny_models import make_tiny_llama

pytestmark = pytest.mark.usefixtures("quiet_transformers")

VARIANTS = {
    "llama2": {"kv_heads": 4},
    "grouped": {},
    "one KV head": {"kv_heads": 1},
    "tied": {"tie": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "one layer": {"num_layers": 1},
    "gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "old config": {"old_style": True, "rope": "llama3"},
    "sharded": {"num_shards": 3},
    "rope linear": {"rope": "linear"},
    "rope dynamic": {"rope": "dynamic"},
    "rope llama3": {"rope": "llama3"},
    "rope yarn": {"rope": "yarn"},
    "rope yarn with a factor": {
        "rope": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.2,
            "beta_fast": 16,
        }
    },
}


def make_tokens(*lengths, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(3, 512) for _ in range(length)] for length in lengths]


def their_logits(folder, tokens):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return [theirs(torch.tensor([ids])).logits[0] for ids in tokens]


def assert_close(ours, theirs):
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == torch.float32
        assert actual.shape == expected.shape
        assert (actual - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_ragged_batch_equal_those_of_each_sequence_in_transformers(tmp_path, variant):
    folder = make_tiny_llama(tmp_path / "model", **VARIANTS[variant])
    tokens = make_tokens(7, 1, 33, 130, 1, 16)
    assert_close(load_model(folder).logits(tokens), their_logits(folder, tokens))


@pytest.mark.parametrize(("length", "served"), [(100, 128), (300, 512)])
def test_longrope_takes_the_factors_for_the_length_that_is_served(tmp_path, length, served):
    folder = make_tiny_llama(tmp_path / "model", rope="longrope")
    tokens = make_tokens(length)
    assert_close(load_model(folder, max_model_len=served).logits(tokens), their_logits(folder, tokens))


def test_dynamic_rope_past_the_trained_length_equals_transformers_at_that_length(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", rope="dynamic", max_position=64)
    tokens = make_tokens(96)
    model = load_model(folder, max_model_len=96)
    assert_close(model.logits(tokens), their_logits(folder, tokens))


def test_yarn_runs_as_far_as_its_factor_says(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", rope="yarn", max_position=64)
    tokens = make_tokens(300)
    assert_close(load_model(folder).logits(tokens), their_logits(folder, tokens))


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_llama2", "tiny_llama3", "tiny_llama_tied"])
def test_sixty_four_greedy_tokens_equal_those_of_transformers(request, fixture):
    folder = request.getfixturevalue(fixture)
    prompts = make_tokens(5, 18)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = [
        theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
        )[0].tolist()
        for prompt in prompts
    ]
    assert generate(load_model(folder), prompts, 64) == expected


def generate(loaded, prompts, num_tokens):
    """Greedy tokens through the cache: each prompt in two chunks, then all sequences a token at a time, as a batch."""
    num_blocks = 8
    run = PagedRun(loaded.model, num_blocks * len(prompts))
    blocks = [range(index * num_blocks, (index + 1) * num_blocks) for index in range(len(prompts))]
    sequences = [list(prompt) for prompt in prompts]
    cached = [0] * len(prompts)
    chunks = [3] * len(prompts)
    while any(len(tokens) < len(prompt) + num_tokens for tokens, prompt in zip(sequences, prompts, strict=True)):
        steps = [
            SequenceStep(tokens[start : start + chunk], start, block)
            for tokens, start, chunk, block in zip(sequences, cached, chunks, blocks, strict=True)
        ]
        for index, hidden_states in enumerate(run.step(steps)):
            cached[index] += chunks[index]
            if cached[index] == len(sequences[index]):
                sequences[index].append(int(loaded.model.compute_logits(hidden_states[-1:])[0].argmax()))
            chunks[index] = len(sequences[index]) - cached[index]
    return sequences


def test_a_float16_or_bfloat16_model_stays_near_float32(tiny_llama):
    tokens = make_tokens(40)
    exact = load_model(tiny_llama).logits(tokens)[0]
    for dtype, allowed in (("bfloat16", 0.05), ("float16", 0.01)):
        logits = load_model(tiny_llama, dtype=dtype).logits(tokens)[0]
        assert logits.dtype == torch.float32
        assert (logits - exact).abs().mean() < allowed * exact.std()


def test_hidden_states_of_inner_layers_come_where_they_are_asked_for(tiny_llama):
    from dataclasses import replace

    from atom_models import build_model, load_weights

    loaded = load_model(tiny_llama)
    model = build_model(loaded.checkpoint, replace(loaded.context, aux_hidden_states=(0, 1)))
    load_weights(model, loaded.checkpoint)
    seen = []
    model.model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    tokens = make_tokens(9)
    PagedRun(model, 1).step([SequenceStep(tokens[0], 0, [0])])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens), output_hidden_states=True).hidden_states
    aux = seen[0][1]
    assert_close([aux[0]], [expected[1][0]])
    assert_close([model.model.norm(aux[1])], [expected[2][0]])


def test_a_batch_gives_each_sequence_what_it_gets_alone(tiny_llama):
    loaded, tokens = load_model(tiny_llama), make_tokens(3, 17, 64, 1, 200, seed=1)
    for together, ids in zip(loaded.logits(tokens), tokens, strict=True):
        assert_close([together], loaded.logits([ids]))


def test_embeddings_may_be_given_instead_of_ids(tiny_llama):
    loaded = load_model(tiny_llama)
    tokens = make_tokens(11)[0]

    class FromEmbeddings(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = loaded.model

        def forward(self, input_ids, positions):
            return self.inner(None, positions, self.inner.embed_input_ids(input_ids))

    step = [SequenceStep(tokens, 0, [0])]
    assert torch.equal(PagedRun(FromEmbeddings(), 1).step(step)[0], PagedRun(loaded.model, 1).step(step)[0])


@pytest.mark.parametrize(
    ("sequences", "says"),
    [
        ([], "no sequences"),
        ([[1], []], "sequence 1 has 0 tokens"),
        ([[1] * 513], "the model takes 1 to 512"),
        ([[512]], "token id 512; the vocabulary ends at 512"),
        ([[-1]], "token id -1"),
    ],
)
def test_bad_batches_are_refused(tiny_llama, sequences, says):
    with pytest.raises(ValueError, match=says):
        load_model(tiny_llama).logits(sequences)


@pytest.mark.timing
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_threads_of_a_loaded_model_sleep_on_a_busy_machine(tmp_path):
    folder = make_tiny_llama(tmp_path / "model")
    code = f"""
        from atom_models import load_model
        model = load_model({str(folder)!r}, "float32", progress=False)
        while is_undecided():
            model.logits([[1, 2, 3]])
    """
    assert waiting_after(code) == "asleep"


def test_a_loaded_model_computes_with_no_more_threads_than_the_quota_has_cores(tmp_path):
    folder = make_tiny_llama(tmp_path / "model")
    code = f"""
        import torch
        from atom_kernels.host_threads import cores
        from atom_models import load_model
        torch.set_num_threads(4)
        load_model({str(folder)!r}, "float32", progress=False)
        print(torch.get_num_threads())
        cores.cgroup_quota = lambda: 1.0
        load_model({str(folder)!r}, "float32", progress=False)
        print(torch.get_num_threads())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "1"]
