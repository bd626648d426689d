"""Every sampling parameter does what its name says, against a plain computation of the same."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest
import torch

from atom_core import SamplingParams
from atom_kernels.sampling import philox_uniform
from atom_models import load_model

PROMPT = [17, 200, 31, 200, 9]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def make_params(**changes) -> SamplingParams:
    return msgspec.structs.replace(GREEDY, **changes)


@pytest.fixture(scope="module")
def reference(tiny_llama):
    """``reference(token_ids)`` gives the logits of the token that follows, without an engine."""
    model = load_model(tiny_llama)
    return lambda token_ids: model.logits([token_ids])[0][-1].float()


def run(engine, params, prompt=PROMPT):
    return engine.generate([prompt], params, use_tqdm=False)[0]


def search(reference, change, *, steps=16, prompt=PROMPT):
    """Greedy tokens where `change(logits, output)` is applied before each choice."""
    output: list[int] = []
    for _ in range(steps):
        output.append(int(change(reference(prompt + output).clone(), output).argmax()))
    return output


def penalize(params, logits, output, prompt=PROMPT):
    """The definitions of the penalties, token by token."""
    for token in set(prompt + output):
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(output).items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    return logits


@pytest.mark.parametrize(
    "changes",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5},
        {"presence_penalty": -1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.7, "presence_penalty": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("async_scheduling", [True, False])
def test_penalties_follow_their_definitions(changes, async_scheduling, make_engine, reference):
    params = make_params(**changes)
    expected = search(reference, lambda logits, output: penalize(params, logits, output))
    assert run(make_engine(async_scheduling=async_scheduling), params)["token_ids"] == expected


def test_penalties_survive_a_preemption(make_engine, reference):
    params = make_params(frequency_penalty=1.5, repetition_penalty=1.3, max_tokens=24)
    prompts = [[3 + index, *PROMPT] * 4 for index in range(5)]
    crowded = make_engine(num_kv_blocks=7, max_model_len=96, enable_prefix_caching=False)
    outputs = crowded.generate(prompts, params, use_tqdm=False)
    assert crowded.stats.num_preemptions > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output["token_ids"] == search(
            reference,
            lambda logits, tokens, prompt=prompt: penalize(params, logits, tokens, prompt),
            steps=24,
            prompt=prompt,
        )


def test_a_bias_is_added_to_the_logits(engine, reference):
    bias = {40: 3.5, 41: -100.0, 300: 2.0}

    def change(logits, output):
        for token, value in bias.items():
            logits[token] += value
        return logits

    assert run(engine, make_params(logit_bias=bias))["token_ids"] == search(reference, change)
    assert set(run(engine, make_params(logit_bias={77: 100.0}))["token_ids"]) == {77}


def test_only_allowed_tokens_are_sampled(engine):
    allowed = [5, 400, 401]
    for params in (
        make_params(allowed_token_ids=allowed),
        make_params(allowed_token_ids=allowed, temperature=2.0, seed=1),
    ):
        assert set(run(engine, params)["token_ids"]) <= set(allowed)


@pytest.mark.parametrize("min_tokens", [0, 1, 5])
def test_a_stop_token_that_is_always_likeliest_comes_right_after_the_minimum_length(min_tokens, engine):
    params = make_params(stop_token_ids=[77], logit_bias={77: 100.0}, min_tokens=min_tokens)
    output = run(engine, params)
    assert output["token_ids"].index(77) == min_tokens == len(output["token_ids"]) - 1
    assert (output["finish_reason"], output["stop_reason"]) == ("stop", 77)


def test_stop_tokens_before_the_minimum_length_do_not_stop_where_nothing_else_is_allowed(engine):
    params = make_params(allowed_token_ids=[9], stop_token_ids=[9], min_tokens=3)
    assert run(engine, params)["token_ids"] == [9] * 4


def test_a_bad_word_of_several_tokens_is_not_generated(engine):
    plain = run(engine, GREEDY)["token_ids"]
    spelt = [(pair, engine.tokenizer.decode(list(pair))) for pair in itertools.pairwise(plain[1:])]
    (pair, word), *_ = [(p, text) for p, text in spelt if engine.tokenizer.encode(text, False) == list(p)]
    output = run(engine, make_params(bad_words=[word]))["token_ids"]
    at = list(itertools.pairwise(plain)).index(pair)
    assert output[: at + 1] == plain[: at + 1]
    assert pair not in itertools.pairwise(output)


def test_the_end_of_sequence_stops_unless_ignored(engine):
    params = make_params(logit_bias={2: 100.0}, max_tokens=4)
    assert run(engine, params)["token_ids"] == [2] * 4
    stopped = run(engine, msgspec.structs.replace(params, ignore_eos=False))
    assert (stopped["token_ids"], stopped["text"], stopped["finish_reason"]) == ([2], "", "stop")


def test_a_seed_gives_the_same_tokens_again_and_another_seed_gives_others(engine):
    params = make_params(temperature=1.0, seed=11)
    first = run(engine, params)["token_ids"]
    assert run(engine, params)["token_ids"] == first
    assert run(engine, msgspec.structs.replace(params, seed=12))["token_ids"] != first


def test_each_token_is_drawn_by_the_random_number_of_its_sample_and_its_position(engine, reference):
    outputs = engine.generate([PROMPT], make_params(temperature=1.0, seed=11, n=2), use_tqdm=False)
    for index, output in enumerate(outputs):
        for place, token in enumerate(output["token_ids"]):
            probabilities = torch.softmax(reference(PROMPT + output["token_ids"][:place]).double(), -1)
            number = philox_uniform(*(torch.tensor([x]) for x in (11, index, len(PROMPT) + place))).item()
            assert token == int(torch.searchsorted(probabilities.cumsum(0), number, right=True))


def test_no_tokens_at_all_still_judges_the_prompt(engine):
    output = run(engine, make_params(max_tokens=0, prompt_logprobs=0))
    assert (output["token_ids"], output["finish_reason"], len(output["prompt_logprobs"])) == ([], "length", 4)


def test_requests_without_a_seed_differ(engine):
    outputs = engine.generate([PROMPT] * 4, make_params(temperature=1.0), use_tqdm=False)
    assert len({tuple(output["token_ids"]) for output in outputs}) == 4


def test_samples_of_one_prompt_differ_and_come_in_order(engine):
    params = make_params(temperature=1.0, seed=3, n=4)
    outputs = engine.generate([PROMPT, [8, 9]], params, use_tqdm=False)
    assert [output["index"] for output in outputs] == [0, 1, 2, 3] * 2
    assert len({tuple(output["token_ids"]) for output in outputs}) == 8
    single = run(engine, msgspec.structs.replace(params, n=1))
    assert outputs[0]["token_ids"] == single["token_ids"]


def test_top_k_of_one_is_greedy_at_any_temperature(engine):
    greedy = run(engine, GREEDY)["token_ids"]
    assert run(engine, make_params(temperature=5.0, top_k=1, seed=1))["token_ids"] == greedy
    assert run(engine, make_params(temperature=5.0, top_p=1e-6, seed=1))["token_ids"] == greedy
    assert run(engine, make_params(temperature=5.0, min_p=1.0, seed=1))["token_ids"] == greedy
    assert run(engine, make_params(temperature=1e-9, seed=1))["token_ids"] == greedy


def test_logprobs_are_those_of_the_model_before_any_change(engine, reference):
    params = make_params(logprobs=3, logit_bias={50: 100.0}, temperature=0.7, seed=2, max_tokens=3)
    output = run(engine, params)
    assert output["token_ids"] == [50, 50, 50]
    for count, entry in enumerate(output["logprobs"]):
        expected = torch.log_softmax(reference(PROMPT + [50] * count), -1)
        best = expected.topk(3)
        assert entry.logprob == pytest.approx(float(expected[50]), abs=1e-4)
        assert entry.rank == int((expected > expected[50]).sum()) + 1
        assert [token_id for token_id, _, _ in entry.top] == best.indices.tolist()
        assert [logprob for _, _, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert entry.token == engine.tokenizer.id_to_text(50)


def test_logprobs_of_chosen_tokens_are_reported_in_place_of_the_likeliest(engine, reference):
    output = run(engine, make_params(logprobs=0, logprob_token_ids=[9, 300, 7], max_tokens=2))
    for count, entry in enumerate(output["logprobs"]):
        expected = torch.log_softmax(reference(PROMPT + output["token_ids"][:count]), -1)
        assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-4)
        assert [token_id for token_id, _, _ in entry.top] == [9, 300, 7]
        assert [logprob for _, _, logprob in entry.top] == pytest.approx(expected[[9, 300, 7]].tolist(), abs=1e-4)


@pytest.mark.parametrize("budget", [512, 7])
def test_prompt_logprobs_judge_every_prompt_token_but_the_first(budget, make_engine, reference):
    prompt = PROMPT * 6
    engine = make_engine(max_num_batched_tokens=budget)
    for _ in range(2):  # the second time, the prefix cache holds the prompt
        entries = run(engine, make_params(prompt_logprobs=1, max_tokens=2), prompt)["prompt_logprobs"]
        assert [entry.token_id for entry in entries] == prompt[1:]
        for count, entry in enumerate(entries, start=1):
            expected = torch.log_softmax(reference(prompt[:count]), -1)
            assert entry.logprob == pytest.approx(float(expected[prompt[count]]), abs=1e-4)
            assert entry.top[0][0] == int(expected.argmax())


def test_prompt_logprobs_of_a_long_prompt_are_made_in_slices(engine, reference, monkeypatch):
    prompt = [3 + index % 400 for index in range(300)]
    monkeypatch.setattr("atom_core.worker.sampling.logprobs.SLICE_ROWS", 64)
    sliced = run(engine, make_params(prompt_logprobs=0, max_tokens=1), prompt)["prompt_logprobs"]
    monkeypatch.setattr("atom_core.worker.sampling.logprobs.SLICE_ROWS", 512)
    whole = run(engine, make_params(prompt_logprobs=0, max_tokens=1), prompt)["prompt_logprobs"]
    assert len(whole) == 299
    assert [entry.logprob for entry in sliced] == pytest.approx([entry.logprob for entry in whole], abs=1e-4)


def test_what_one_row_asks_for_changes_no_other_row(engine):
    plain = make_params(temperature=0.9, seed=4)
    odd = [
        make_params(logprobs=5, prompt_logprobs=2),
        make_params(repetition_penalty=2.0, logit_bias={9: 4.0}),
        make_params(allowed_token_ids=[4, 5], temperature=1.0, seed=9),
    ]
    expected = run(engine, plain)["token_ids"]
    outputs = engine.generate([PROMPT] * 4, [odd[0], plain, odd[1], odd[2]], use_tqdm=False)
    assert outputs[1]["token_ids"] == expected
    assert outputs[1]["logprobs"] is None
    assert outputs[1]["prompt_logprobs"] is None
