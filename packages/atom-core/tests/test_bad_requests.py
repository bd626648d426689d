"""Everything that a caller can get wrong is refused by name before it reaches the engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_core import InvalidRequestError, SamplingParams
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.validation import RequestLimits
from atom_core.messages import Pooling

LIMITS = RequestLimits(max_model_len=64, vocab_size=100, max_num_seqs=8)
PROMPT = [1, 2, 3]


def make_processor() -> InputProcessor:
    return InputProcessor(LIMITS, eos_token_ids=[2], seed=0)


BAD_PARAMS = [
    ("temperature", -0.1, "at least 0"),
    ("temperature", math.nan, "finite"),
    ("temperature", math.inf, "finite"),
    ("temperature", "hot", "must be a number"),
    ("temperature", None, "must be a number"),
    ("temperature", True, "must be a number"),
    ("temperature", 10**400, "finite"),
    ("top_p", 0, "above 0 and at most 1"),
    ("top_p", 1.5, "above 0 and at most 1"),
    ("top_p", math.nan, "finite"),
    ("top_k", -2, "at least -1"),
    ("top_k", 1.5, "integer"),
    ("top_k", 10**30, "integer"),
    ("min_p", -1, "at least 0 and at most 1"),
    ("presence_penalty", 3, "at least -2 and at most 2"),
    ("frequency_penalty", -2.1, "at least -2 and at most 2"),
    ("repetition_penalty", 0, "at least 0.01"),
    ("repetition_penalty", 5e-324, "at least 0.01"),
    ("n", 0, "from 1 to 8"),
    ("n", 9, "from 1 to 8"),
    ("n", 20000, "from 1 to 8"),
    ("n", 2.0, "integer"),
    ("seed", "x", "integer"),
    ("seed", 2**64, "integer"),
    ("max_tokens", -1, "at least 0"),
    ("max_tokens", 62, "at most 61"),
    ("max_tokens", 10**12, "at most 61"),
    ("max_tokens", "5", "integer"),
    ("min_tokens", -1, "from 0"),
    ("min_tokens", 65, "from 0"),
    ("logprobs", 21, "from 0 to 20"),
    ("logprobs", -1, "from 0 to 20"),
    ("logprobs", True, "integer"),
    ("prompt_logprobs", 10**6, "from 0 to 20"),
    ("stop_strings", "stop", "a list of at most 16"),
    ("stop_strings", [""], "1 to 256 characters"),
    ("stop_strings", ["ok", "a\ud800"], "half of a surrogate pair, '\\ud800' at character 1"),
    ("bad_words", ["\udfff"], "half of a surrogate pair"),
    ("stop_strings", ["x" * 257], "1 to 256 characters"),
    ("stop_strings", ["x"] * 17, "at most 16"),
    ("stop_strings", [3], "1 to 256 characters"),
    ("stop_token_ids", [100], "from 0 to 99"),
    ("stop_token_ids", 5, "list"),
    ("stop_token_ids", [1.0], "from 0 to 99"),
    ("allowed_token_ids", [], "at least one"),
    ("allowed_token_ids", [-1], "from 0 to 99"),
    ("logit_bias", {100: 1.0}, "from 0 to 99"),
    ("logit_bias", {1: math.nan}, "finite"),
    ("logit_bias", {1: 101}, "at most 100"),
    ("logit_bias", {"1": 1.0}, "from 0 to 99"),
    ("logit_bias", [1], "object"),
    ("logit_bias", dict.fromkeys(range(2000), 0.0), "at most 1024"),
    ("ignore_eos", "yes", "true or false"),
    ("include_stop_str_in_output", 1, "true or false"),
    ("skip_special_tokens", None, "true or false"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD_PARAMS, ids=lambda value: str(value)[:40])
def test_a_parameter_that_cannot_be_is_refused_by_name(name, value, allowed):
    with pytest.raises(InvalidRequestError) as caught:
        make_processor().process(
            [PROMPT], SamplingParams(**{name: value} | ({} if name == "max_tokens" else {"max_tokens": 8}))
        )
    assert caught.value.param == ("stop" if name == "stop_strings" else name)
    assert allowed in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([], "empty_prompt"),
        (list(range(64)), "context_length_exceeded"),
        ([1, 100], "invalid_token_id"),
        ([-1], "invalid_token_id"),
        ([1.5], "invalid_token_id"),
        ([True], "invalid_token_id"),
        (["a"], "invalid_token_id"),
        ("text", "invalid_value"),
        (None, "invalid_value"),
        (5, "invalid_value"),
    ],
    ids=str,
)
def test_a_prompt_that_cannot_be_is_refused(prompt, code):
    with pytest.raises(InvalidRequestError) as caught:
        make_processor().process([prompt], SamplingParams(max_tokens=1))
    assert (caught.value.param, caught.value.code) == ("prompt", code)


def test_a_prompt_over_the_context_is_told_the_true_counts():
    with pytest.raises(InvalidRequestError, match="prompt has 80 tokens; this model's context is 64"):
        make_processor().process([[1] * 80], SamplingParams(max_tokens=1))


@pytest.mark.parametrize("salt", ["a b", "x" * 65, "é", 5, "../x"])
def test_a_cache_salt_is_a_short_plain_word(salt):
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        make_processor().process([PROMPT], SamplingParams(max_tokens=1), cache_salt=salt)


@pytest.mark.parametrize("priority", [1.5, "high", 2**40, True, -101, 101])
def test_a_priority_is_an_integer_of_at_most_a_hundred(priority):
    with pytest.raises(InvalidRequestError, match="priority"):
        make_processor().process([PROMPT], SamplingParams(max_tokens=1), priority=priority)


def test_what_a_request_leaves_open_is_filled_in():
    submission = make_processor().process([PROMPT], SamplingParams(max_tokens=None, top_k=0, temperature=1e-8))
    (request,) = submission.samples()
    params = request.sampling_params
    assert (params.max_tokens, params.top_k, params.temperature) == (61, -1, 0.0)
    assert isinstance(params.seed, int)
    assert request.eos_token_ids == (2,)


def test_samples_share_a_seed_and_a_parent():
    requests = list(make_processor().process([PROMPT], SamplingParams(n=3, max_tokens=4)).samples())
    assert [request.sample_index for request in requests] == [0, 1, 2]
    assert len({request.caller_id for request in requests}) == 1
    assert len({request.request_id for request in requests}) == 3
    assert len({request.sampling_params.seed for request in requests}) == 1
    assert {request.sampling_params.n for request in requests} == {1}


def test_no_two_requests_of_an_engine_have_the_same_id():
    processor = make_processor()
    params = SamplingParams(n=2, max_tokens=4)
    submissions = [processor.process([PROMPT, PROMPT], params) for _ in range(3)]
    submissions += [processor.process_embedding([PROMPT] * 2, Pooling()) for _ in range(2)]
    ids = [sample.request_id for submission in submissions for sample in submission.samples()]
    assert len(ids) == len(set(ids)) == 16
    assert len({prompt.request_id for submission in submissions for prompt in submission.prompts}) == 10


def test_prompts_that_share_their_parameters_have_a_seed_each():
    submission = make_processor().process([PROMPT, PROMPT], SamplingParams(max_tokens=4))
    first, second = submission.samples()
    assert first.sampling_params.seed != second.sampling_params.seed


ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers()))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), ANYTHING), ANYTHING)
def test_no_parameters_raise_anything_but_a_refusal(values, prompt):
    processor = make_processor()
    for tokens in (prompt, PROMPT):
        try:
            submission = processor.process([tokens], SamplingParams(**values))
        except InvalidRequestError:
            continue
        assert 1 <= submission.num_samples == len(list(submission.samples())) <= LIMITS.max_num_seqs


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e30},
        {"temperature": 1e-30, "top_p": 1e-30},
        {"min_p": 1.0, "top_k": 1},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100.0, "presence_penalty": -2.0},
        {"logit_bias": {5: -100.0}, "allowed_token_ids": [5]},
        {"stop_token_ids": [5], "allowed_token_ids": [5], "min_tokens": 3},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"logprobs": 20, "prompt_logprobs": 20},
        {"stop_strings": ["\x00", "\ud7ff"]},
    ],
    ids=str,
)
def test_extremes_that_are_allowed_do_not_hurt_the_engine(params, engine):
    (output,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=6, **params), use_tqdm=False)
    assert output["error"] is None
    assert output["finish_reason"] in ("length", "stop")


def test_parameters_that_many_prompts_share_are_gone_through_once():
    class Counted(list):
        num_reads = 0

        def __iter__(self):
            Counted.num_reads += 1
            return super().__iter__()

    params = SamplingParams(max_tokens=4, allowed_token_ids=Counted([1, 2, 3]))
    make_processor().process([PROMPT] * 50, params)
    assert Counted.num_reads < 5


def test_an_engine_in_this_process_has_the_same_limit_of_logprobs(make_engine):
    engine = make_engine(max_request_logprobs=20)
    with pytest.raises(InvalidRequestError, match="max_request_logprobs"):
        engine.add_request([[5]], SamplingParams(max_tokens=5, logprobs=4))
    # Prompts are requests of their own there: only their number is the caller's.
    engine.generate([[5]] * 9, SamplingParams(max_tokens=4, logprobs=4), use_tqdm=False)


def test_a_request_over_the_cache_is_refused_at_the_door_and_nothing_is_queued(make_engine):
    engine = make_engine(num_kv_blocks=2)
    assert engine.info.max_model_len == 32
    with pytest.raises(InvalidRequestError, match="context is 32"):
        engine.add_request([[1, 2], [3] * 40], SamplingParams(max_tokens=2))
    assert engine.is_finished()
