"""Each limit of a request: its last allowed value, its first refused one, and what the refusal says."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from atom_core import EngineArgs, InvalidRequestError, SamplingParams
from atom_core.engine.info import EngineInfo
from atom_core.engine.inputs.checked_prompts import INLINE_TOKENS, CheckedPrompts, beside_the_loop
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.queue_limits import Load, QueueLimits
from atom_core.engine.inputs.validation import (
    RequestLimits,
    check_lengths,
    check_num_logprobs,
    check_prompt_ids,
    check_sampling_params,
    check_structured_outputs,
    check_tenant,
    check_thinking_budget,
    num_logprobs,
)
from atom_core.messages import Pooling, StructuredOutputParams, ThinkingBudget
from atom_core.tokenization import Tokenizer

# More token ids than the longest list that a request may name.
LIMITS = RequestLimits(max_model_len=64, vocab_size=2000, max_num_seqs=8)
PROMPT = [1, 2, 3]


def make_processor(limits: RequestLimits = LIMITS, **overrides: Any) -> InputProcessor:
    return InputProcessor(limits, **{"eos_token_ids": [2], "seed": 0} | overrides)


def refusal_of(check, *arguments, **options) -> tuple[str, str | None, str]:
    with pytest.raises(InvalidRequestError) as caught:
        check(*arguments, **options)
    return caught.value.message, caught.value.param, caught.value.code


# A parameter -> its lowest and highest values, what comes right before and right behind them, and how they are told.
RANGES = {
    "temperature": (0, 1e308, -1e-9, float("inf"), "at least 0"),
    "top_k": (-1, 2**63, -2, 2**63 + 1, "at least -1"),
    "top_p": (1e-9, 1, 0, 1.0000001, "above 0 and at most 1"),
    "min_p": (0, 1, -1e-9, 1.0000001, "at least 0 and at most 1"),
    "presence_penalty": (-2, 2, -2.0000001, 2.0000001, "at least -2 and at most 2"),
    "frequency_penalty": (-2, 2, -2.0000001, 2.0000001, "at least -2 and at most 2"),
    "repetition_penalty": (0.01, 100, 0.00999, 100.00001, "at least 0.01 and at most 100"),
    "n": (1, 8, 0, 9, "from 1 to 8"),
    "seed": (-(2**63), 2**63 - 1, -(2**63) - 1, 2**63, f"from {-(2**63)} to {2**63 - 1}"),
    "logprobs": (0, 20, -1, 21, "from 0 to 20"),
    "prompt_logprobs": (0, 20, -1, 21, "from 0 to 20"),
    "max_tokens": (0, 2**63, -1, 2**63 + 1, "at least 0"),
}
INTEGERS = ("top_k", "n", "seed", "logprobs", "prompt_logprobs", "max_tokens")


@pytest.mark.parametrize("name", RANGES)
def test_a_number_may_be_its_bounds_and_nothing_past_them(name):
    lowest, highest, too_low, too_high, allowed = RANGES[name]
    for value in (lowest, highest):
        check_sampling_params(SamplingParams(**{name: value}), LIMITS)
    kind, finite = ("an integer", "an integer") if name in INTEGERS else ("a number", "a finite number")
    for value in (too_low, too_high):
        expected = (f"{name} is {value!r}; it must be {finite} {allowed}", name, "invalid_value")
        assert refusal_of(check_sampling_params, SamplingParams(**{name: value}), LIMITS) == expected
    for value in ("1", True):
        expected = (f"{name} is {value!r}; it must be {kind} {allowed}", name, "invalid_type")
        assert refusal_of(check_sampling_params, SamplingParams(**{name: value}), LIMITS) == expected


def test_a_value_is_shown_in_at_most_60_characters():
    for length, shown in ((58, "'" + "x" * 58 + "'"), (59, "'" + "x" * 56 + "...")):
        message, *_ = refusal_of(check_sampling_params, SamplingParams(n="x" * length), LIMITS)  # type: ignore[arg-type]
        assert message == f"n is {shown}; it must be an integer from 1 to 8"


def test_a_large_integer_is_a_number_as_long_as_it_fits_64_bits():
    check_sampling_params(SamplingParams(temperature=2**63 - 1), LIMITS)
    message, *_ = refusal_of(check_sampling_params, SamplingParams(temperature=2**63), LIMITS)
    assert message == f"temperature is {2**63}; it must be a finite number at least 0"


# A parameter -> how many entries its list may have, and a good entry.
LISTS: dict[str, tuple[int, Any]] = {
    "stop_strings": (16, "x"),
    "bad_words": (128, "x"),
    "stop_token_ids": (128, 1999),
    "logprob_token_ids": (128, 0),
    "kept_special_token_ids": (128, 5),
    "allowed_token_ids": (2000, 5),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_may_be_as_long_as_its_limit_and_no_longer(name):
    most, entry = LISTS[name]
    shown = name.removesuffix("_strings")
    for sequence in (list, tuple):
        check_sampling_params(SamplingParams(**{name: sequence([entry] * most), "logprobs": 1}), LIMITS)
    params = SamplingParams(**{name: [entry] * (most + 1), "logprobs": 1})
    message, param, code = refusal_of(check_sampling_params, params, LIMITS)
    what = f"texts of 1 to {256} characters" if isinstance(entry, str) else "token ids"
    assert (message, param, code) == (f"{shown} must be a list of at most {most} {what}", shown, "invalid_value")


@pytest.mark.parametrize("name", ["stop_strings", "bad_words"])
def test_a_text_of_a_list_has_1_to_256_characters(name):
    shown = name.removesuffix("_strings")
    check_sampling_params(SamplingParams(**{name: ["x", "y" * 256]}), LIMITS)
    for text, start in (("", "''"), ("y" * 257, "'" + "y" * 56 + "...")):
        message, param, _ = refusal_of(check_sampling_params, SamplingParams(**{name: ["x", text]}), LIMITS)
        assert message.startswith(f"{shown} holds {start}; it must be a list of at most ")
        assert param == shown


@pytest.mark.parametrize("name", [name for name in LISTS if "token" in name])
@pytest.mark.parametrize("wrong", [-1, 2000, 1.0, True, None])
def test_an_entry_that_is_no_token_id_is_refused_by_the_parameter_that_has_it(name, wrong):
    params = SamplingParams(**{name: [0, 1999, wrong], "logprobs": 1})
    expected = (f"{name} holds {wrong!r}; token ids are integers from 0 to 1999", name, "invalid_token_id")
    assert refusal_of(check_sampling_params, params, LIMITS) == expected


def test_biases_are_of_at_most_1024_tokens_and_from_minus_100_to_100():
    check_sampling_params(SamplingParams(logit_bias=dict.fromkeys(range(1023), -100.0) | {1999: 100.0}), LIMITS)
    message, param, _ = refusal_of(
        check_sampling_params, SamplingParams(logit_bias=dict.fromkeys(range(1025), 0.0)), LIMITS
    )
    assert (message, param) == ("logit_bias must be an object of at most 1024 token ids", "logit_bias")
    for bias in (-100.001, 100.001):
        message, *_ = refusal_of(check_sampling_params, SamplingParams(logit_bias={7: bias}), LIMITS)
        assert message == f"logit_bias is {bias}; it must be a finite number at least -100 and at most 100"
    message, *_ = refusal_of(check_sampling_params, SamplingParams(logit_bias={2000: 0.0}), LIMITS)
    assert message == "logit_bias holds 2000; token ids are integers from 0 to 1999"


def test_what_goes_with_nothing_else_is_refused():
    embeds = RequestLimits(64, 2000, 8, why_no_text="its checkpoint holds a decoder without a head")
    message, param, _ = refusal_of(check_sampling_params, SamplingParams(), embeds)
    assert message.startswith("this model cannot generate")
    assert param == "model"
    message, param, _ = refusal_of(check_sampling_params, {"n": 1}, LIMITS)
    assert (message, param) == ("sampling_params is a dict; it must be SamplingParams", None)
    message, param, _ = refusal_of(check_sampling_params, SamplingParams(logprob_token_ids=[1]), LIMITS)
    assert (message, param) == ("logprob_token_ids need logprobs", "logprob_token_ids")
    check_sampling_params(SamplingParams(logprob_token_ids=[1], logprobs=0), LIMITS)


@pytest.mark.parametrize("name", ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens"])
def test_a_switch_is_true_or_false(name):
    for value in (True, False):
        check_sampling_params(SamplingParams(**{name: value}), LIMITS)
    expected = (f"{name} is 1; it must be true or false", name, "invalid_type")
    assert refusal_of(check_sampling_params, SamplingParams(**{name: 1}), LIMITS) == expected


def test_what_is_generated_has_the_room_that_a_prompt_leaves():
    for params in (SamplingParams(max_tokens=61, min_tokens=61), SamplingParams(max_tokens=None, min_tokens=61)):
        check_lengths(params, LIMITS, num_prompt_tokens=3)
    message, param, code = refusal_of(check_lengths, SamplingParams(max_tokens=62), LIMITS, num_prompt_tokens=3)
    assert message.startswith("max_tokens is 62 and the prompt has 3 tokens; this model's context is 64 tokens")
    assert message.endswith("ask for at most 61")
    assert (param, code) == ("max_tokens", "context_length_exceeded")
    for params, most in (
        (SamplingParams(max_tokens=5, min_tokens=6), 5),
        (SamplingParams(max_tokens=None, min_tokens=62), 61),
    ):
        message, param, _ = refusal_of(check_lengths, params, LIMITS, num_prompt_tokens=3)
        assert message == f"min_tokens is {most + 1}; it must be an integer from 0 to {most}"
        assert param == "min_tokens"


def test_log_probabilities_are_counted_over_all_samples_and_tokens():
    def count(**params):
        return num_logprobs(SamplingParams(**{"max_tokens": 10} | params), LIMITS, num_prompt_tokens=4)

    assert count() == 0
    assert count(logprobs=0) == 10
    assert count(logprobs=3) == 40
    assert count(logprobs=1, logprob_token_ids=[1, 2, 3, 4]) == 50
    assert count(logprobs=5, logprob_token_ids=[1]) == 60
    assert count(prompt_logprobs=0) == 4
    assert count(prompt_logprobs=2) == 12
    assert count(prompt_logprobs=2, logprobs=3, n=2) == 2 * 52
    assert count(logprobs=0, max_tokens=None) == 60


def test_a_request_may_have_as_many_log_probabilities_as_are_kept():
    assert LIMITS.max_request_logprobs == 2**21 == EngineArgs(model="x").max_request_logprobs
    limits = RequestLimits(64, 2000, 8, max_request_logprobs=120)
    check_num_logprobs(120, limits)
    message, param, _ = refusal_of(check_num_logprobs, 121, limits)
    assert message.startswith(
        "this request asks for up to 121 log-probabilities, over all samples and tokens; at most 120"
    )
    assert param == "logprobs"
    processor = make_processor(limits)
    two = processor.process([PROMPT] * 2, SamplingParams(max_tokens=60, logprobs=0))
    processor.check_num_logprobs(two)
    three = processor.process([PROMPT] * 3, SamplingParams(max_tokens=60, logprobs=0))
    assert refusal_of(processor.check_num_logprobs, three)[0].startswith("this request asks for up to 180 ")
    # Each prompt is held to it before it is let in.
    assert "121 log" in refusal_of(processor.process, [PROMPT], SamplingParams(max_tokens=11, logprobs=10))[0]


THINKING = {"max_tokens": 5, "begin": "<t>", "end": "</t>"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_tokens": -1}, "thinking_budget is -1; it must be an integer at least 0"),
        ({"begin": ""}, "thinking_budget holds ''; it must be a list of at most 2 texts of 1 to 256 characters"),
        ({"end": ""}, "thinking_budget holds ''; it must be a list of at most 2 texts of 1 to 256 characters"),
        ({"end": "x" * 257}, "thinking_budget holds '" + "x" * 56 + "...; it must be"),
    ],
)
def test_a_thinking_budget_has_a_length_and_marks(changed, message):
    def check(fields, *, has_tokenizer=True):
        check_thinking_budget(SamplingParams(thinking_budget=ThinkingBudget(**fields)), has_tokenizer=has_tokenizer)

    for allowed in (THINKING, THINKING | {"max_tokens": 0}, THINKING | {"end": "x" * 256}):
        check(allowed)
    told, param, _ = refusal_of(check, THINKING | changed)
    assert told.startswith(message)
    assert param == "thinking_budget"
    told, *_ = refusal_of(check, THINKING, has_tokenizer=False)
    assert told == "thinking_budget needs a tokenizer, and skip_tokenizer_init left it out"


def test_a_thinking_budget_is_one_or_nothing():
    check_thinking_budget(SamplingParams(), has_tokenizer=False)
    told = refusal_of(check_thinking_budget, SamplingParams(thinking_budget=5), has_tokenizer=True)  # type: ignore[arg-type]
    assert told[:2] == ("thinking_budget is a int; it must be ThinkingBudget", "thinking_budget")


def test_a_constraint_needs_a_tokenizer_an_end_and_all_tokens():
    constraint = StructuredOutputParams(choice=["a"])

    def check(has_eos=True, has_tokenizer=True, **params):
        params = SamplingParams(**{"structured_outputs": constraint} | params)
        check_structured_outputs(params, has_eos=has_eos, has_tokenizer=has_tokenizer)

    check()
    check(structured_outputs=None, has_eos=False, has_tokenizer=False, allowed_token_ids=[1])
    for problem, options in (
        ("allowed_token_ids and structured_outputs exclude each other: leave one out", {"allowed_token_ids": [1]}),
        ("structured_outputs needs a tokenizer, and skip_tokenizer_init left it out", {"has_tokenizer": False}),
        ("structured_outputs needs a model with an end-of-sequence token; this one names none", {"has_eos": False}),
    ):
        assert refusal_of(check, **options)[:2] == (problem, "structured_outputs")
    message, param, _ = refusal_of(check, structured_outputs=StructuredOutputParams())
    assert message.startswith("structured_outputs: exactly one of")
    assert param == "structured_outputs"


def test_a_tenants_name_has_at_most_128_characters():
    check_tenant("x" * 128)
    message, param, _ = refusal_of(check_tenant, "x" * 129)
    assert message.endswith("...; it must be at most 128 characters")
    assert param == "tenant"
    assert refusal_of(check_tenant, 5)[0] == "tenant is 5; it must be at most 128 characters"
    assert refusal_of(make_processor().process, [PROMPT], SamplingParams(max_tokens=1), tenant="x" * 129)[1] == "tenant"


def test_the_first_and_the_last_token_are_ids_and_the_one_that_is_wrong_is_named():
    check_prompt_ids([0, 1999], 2000)
    lists = ([0, 2000, -1], [0, 0, -1], [2000], [0, 2**32], [-(2**70)], [0, True], [1.0])
    for wrong, token_ids in zip((2000, -1, 2000, 2**32, -(2**70), True, 1.0), lists, strict=True):
        message, param, code = refusal_of(check_prompt_ids, token_ids, 2000, name="input")
        assert message == f"input holds {wrong}; token ids are integers from 0 to 1999"
        assert (param, code) == ("input", "invalid_token_id")


def test_a_prompt_leaves_room_for_a_token():
    processor = make_processor()
    submission = processor.process([[1] * 63], SamplingParams(max_tokens=None))
    assert [prompt.max_tokens for prompt in submission.prompts] == [1]
    message, param, code = refusal_of(processor.process, [[1] * 64], SamplingParams(max_tokens=None))
    assert message.startswith("prompt has 64 tokens; this model's context is 64 tokens")
    assert message.endswith("send at most 63")
    assert (param, code) == ("prompt", "context_length_exceeded")


def test_prompts_that_were_checked_are_not_gone_through_again_except_for_their_length():
    class Counted(list):
        num_reads = 0

        def __iter__(self):
            Counted.num_reads += 1
            return super().__iter__()

        def __getitem__(self, key):
            Counted.num_reads += 1
            return super().__getitem__(key)

    processor = make_processor()
    checked = processor.check_prompts([PROMPT, [5]])
    assert checked == CheckedPrompts([PROMPT, [5]])
    for process in (
        lambda prompts: processor.process(prompts, SamplingParams(max_tokens=1)),
        lambda prompts: processor.process_embedding(prompts, Pooling("mean")),
    ):
        assert [prompt.token_ids for prompt in process(checked).prompts] == [PROMPT, [5]]
        process(CheckedPrompts([Counted(PROMPT)]))
        assert Counted.num_reads == 0
        process([Counted(PROMPT)])
        assert Counted.num_reads > 0
        Counted.num_reads = 0
        # The engine may have been started anew, with another context.
        message, *_ = refusal_of(process, CheckedPrompts([[1] * 64]))
        assert message.startswith("prompt has 64 tokens")


async def test_work_on_few_tokens_is_done_at_once_and_on_more_in_a_thread():
    assert INLINE_TOKENS == 1024
    here = threading.get_ident()
    for num_tokens, is_here in ((0, True), (INLINE_TOKENS, True), (INLINE_TOKENS + 1, False)):
        assert (await beside_the_loop(threading.get_ident, num_tokens=num_tokens) == here) is is_here


def test_what_a_caller_leaves_out_is_nobodys_and_as_urgent_as_any():
    processor = make_processor()
    for submission in (
        processor.process([PROMPT], SamplingParams(max_tokens=1)),
        processor.process_embedding([PROMPT], Pooling("last")),
    ):
        assert (submission.priority, submission.cache_salt, submission.tenant) == (0, "", "")
    given = {"priority": 3, "cache_salt": "s", "tenant": "t"}
    submission = processor.process_embedding([PROMPT], Pooling("last"), **given)
    assert (submission.priority, submission.cache_salt, submission.tenant) == (3, "s", "t")
    assert (submission.kind, submission.pooling) == ("embed", Pooling("last"))
    (prompt,) = submission.prompts
    assert (prompt.seed, prompt.max_tokens) == (0, 0)
    message, param, _ = refusal_of(processor.process_embedding, [PROMPT], Pooling("best"))
    assert message.startswith("pooling is 'best'; it must be one of ")
    assert param == "pooling"


def test_the_limits_of_a_processor_are_those_of_its_engine():
    info = EngineInfo(
        model="x",
        model_path="x",
        architecture="LlamaForCausalLM",
        max_model_len=64,
        vocab_size=2000,
        dtype="float32",
        kv_cache_dtype="float32",
        device="cpu",
        num_blocks=16,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        enable_prefix_caching=False,
        eos_token_ids=(2, 7),
        num_threads=1,
    )
    args = EngineArgs(model="x", seed=5, max_request_logprobs=9)
    processor = InputProcessor.of_engine(info, args, None, why_no_text=None)
    assert processor.limits == RequestLimits(64, 2000, 8, max_request_logprobs=9)
    submission = processor.process([PROMPT], SamplingParams(max_tokens=1))
    assert submission.eos_token_ids == (2, 7)
    assert submission.prompts[0].seed == random.Random(5).getrandbits(63)
    assert processor.process([PROMPT], SamplingParams(max_tokens=1, ignore_eos=True)).eos_token_ids == ()
    embeds = InputProcessor.of_engine(info, args, None, why_no_text="it is headless")
    assert embeds.limits.why_no_text == "it is headless"


def test_what_a_request_leaves_to_the_engine_is_resolved(tiny_llama):
    def resolved(**params) -> SamplingParams:
        return make_processor().process([PROMPT], SamplingParams(max_tokens=1, **params)).sampling_params

    for top_k, told in ((0, -1), (-1, -1), (1, 1), (1999, 1999), (2000, -1), (2001, -1)):
        assert resolved(top_k=top_k).top_k == told
    assert [resolved(temperature=value).temperature for value in (9e-6, 1e-5, 1)] == [0.0, 1e-5, 1.0]
    assert isinstance(resolved(top_p=1).top_p, float)
    assert make_processor().process([PROMPT], SamplingParams(max_tokens=1, seed=-7)).prompts[0].seed == -7
    tokenizer = Tokenizer.from_folder(tiny_llama)
    processor = make_processor(tokenizer=tokenizer)
    spelled = [tokenizer.encode(text, add_special_tokens=False) for text in ("ab", " ab")]
    params = SamplingParams(max_tokens=1, bad_words=["ab"])
    assert processor.with_bad_words(params).bad_words_token_ids == spelled
    assert processor.with_bad_words(SamplingParams()).bad_words_token_ids is None
    assert processor.process([PROMPT], params).sampling_params.bad_words_token_ids == spelled
    known = SamplingParams(max_tokens=1, bad_words=["ab"], bad_words_token_ids=[[9]])
    assert processor.process([PROMPT], known).sampling_params.bad_words_token_ids == [[9]]
    alone = SamplingParams(max_tokens=1, bad_words_token_ids=[[9]])
    assert processor.process([PROMPT], alone).sampling_params.bad_words_token_ids is None


def test_without_a_tokenizer_texts_are_refused_by_what_they_are_for():
    for name, param_name in (("stop_strings", "stop"), ("bad_words", "bad_words")):
        message, param, _ = refusal_of(
            make_processor().process, [PROMPT], SamplingParams(max_tokens=1, **{name: ["x"]})
        )
        assert message == f"{param_name} needs a tokenizer, and skip_tokenizer_init left it out"
        assert param == param_name
    params = SamplingParams(bad_words=["x"])
    assert make_processor().with_bad_words(params) is params
    assert refusal_of(make_processor().with_bad_words, SamplingParams(n=9, bad_words=["x"]))[1] == "n"


def test_a_constraint_is_refused_before_it_is_compiled(tiny_llama):
    processor = make_processor(tokenizer=Tokenizer.from_folder(tiny_llama), eos_token_ids=[])
    params = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputParams(choice=["a"]))
    assert "names none" in refusal_of(processor.validate_constraint, params)[0]
    assert "names none" in refusal_of(processor.process, [PROMPT], params)[0]
    assert "skip_tokenizer_init" in refusal_of(make_processor().validate_constraint, params)[0]
    thinks = SamplingParams(thinking_budget=ThinkingBudget(**THINKING))
    assert "skip_tokenizer_init" in refusal_of(make_processor().validate_constraint, thinks)[0]
    processor.validate_constraint(thinks)


def test_a_queue_that_is_full_says_what_runs_and_what_there_is_room_for():
    limits = QueueLimits(max_num_seqs=2, max_num_queued_requests=6, max_num_queued_tokens=100)
    nothing = Load()
    assert (nothing.num_samples, nothing.num_tokens) == (0, 0)

    def told(samples, tokens=0, *, held=nothing, own=None, **n):
        return refusal_of(limits.check, Load(num_samples=samples, num_tokens=tokens), open_load=held, own_load=own, **n)

    set_samples = "max_num_seqs = 2, max_num_queued_requests = 6"
    set_tokens = "max_num_queued_tokens = 100"
    assert told(9) == (
        f"9 prompts with n = 1 are 9 samples; at most 8 may run and wait ({set_samples}): ask for fewer",
        "prompt",
        "invalid_value",
    )
    assert told(12, n=3)[:2] == (
        f"4 prompts with n = 3 are 12 samples; at most 8 may run and wait ({set_samples}): ask for fewer",
        "n",
    )
    assert told(10, n=2)[1] == "n"
    assert told(1, 101)[:2] == (
        f"the prompts have 101 tokens together; at most 100 may run and wait ({set_tokens}): send fewer at once",
        "prompt",
    )
    held = Load(num_samples=7, num_tokens=90)
    assert told(2, held=held) == (
        f"7 samples run or wait, of at most 8, and there is no room for 2 more ({set_samples}): try again later",
        None,
        "queue_full",
    )
    assert told(1, 11, held=held)[0].startswith("90 prompt tokens run or wait, of at most 100")
    own = Load(num_samples=3, num_tokens=30)
    assert told(1, held=Load(num_samples=5, num_tokens=5), own=own)[0] == (
        "3 samples of this key run or wait; of 3 that are free as many are left to others "
        f"({set_samples}): try again later"
    )
    assert told(1, 6, held=Load(num_samples=1, num_tokens=65), own=Load(num_samples=1, num_tokens=30))[0].startswith(
        "30 prompt tokens of this key run or wait; of 35 that are free"
    )
