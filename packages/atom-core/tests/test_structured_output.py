"""Text that follows a grammar: whole and valid, whatever the engine does with the request meanwhile."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from atom_core import InvalidRequestError, SamplingParams, StructuredOutputParams
from atom_models import load_model
from grammars import (
    BACKENDS,
    PERSON,
    PROMPT,
    make_matcher,
    make_object_schema,
    make_params,
    run,
    unpacked,
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_random_model_writes_valid_json_for_200_schemas(make_engine, backend):
    rng = random.Random(0)
    schemas = [make_object_schema(rng, strings=backend != "xgrammar") for _ in range(200)]
    engine = make_engine(num_kv_blocks=2048, structured_output_backend=backend)
    params = [make_params(json=schema, seed=index, max_tokens=500) for index, schema in enumerate(schemas)]
    outputs = run(engine, params, [PROMPT] * len(schemas))
    for schema, output in zip(schemas, outputs, strict=True):
        assert output["finish_reason"] == "stop", (schema, output)
        jsonschema.validate(json.loads(output["text"]), schema)


def test_sampled_tokens_are_as_frequent_as_filtering_by_hand_makes_them(engine, tiny_llama: Path):
    """First tokens of many samples against the softmax of the logits that the grammar leaves."""
    constraint = StructuredOutputParams(regex="[a-f]")
    logits = load_model(tiny_llama, dtype="float32").logits([PROMPT])[0][-1].numpy().astype(np.float64) / 2.0
    logits[~unpacked(make_matcher(engine, constraint).mask(), len(logits))] = -np.inf
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    count = 600
    params = [make_params(2.0, max_tokens=1, seed=seed, regex="[a-f]") for seed in range(count)]
    tokens = [output["token_ids"][0] for output in run(engine, params, [PROMPT] * count)]
    found = np.bincount(tokens, minlength=len(expected)) / count
    assert np.abs(found - expected).max() < 4 * 0.5 / np.sqrt(count)
    assert not found[expected == 0].any()


CONSTRAINTS = {
    "regex": ({"regex": r"[A-Z]{3}-\d{2,4}"}, r"[A-Z]{3}-\d{2,4}"),
    "choice": ({"choice": ["yes", "no", 'it\'s "so"']}, r"yes|no|it's \"so\""),
    "gbnf": ({"grammar": 'root ::= "x" ("+" "x")? "=" [0-9]'}, r"x(\+x)?=[0-9]"),
    "lark": ({"grammar": 'start: "a" B\nB: /b{1,3}/'}, "ab{1,3}"),
    "schema as text": ({"json": '{"enum": ["left", "right"]}'}, '"left"|"right"'),
}


@pytest.mark.parametrize(("constraint", "pattern"), CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_each_kind_of_constraint_is_followed(engine, constraint, pattern):
    outputs = run(engine, [make_params(seed=seed, **constraint) for seed in range(8)], [PROMPT] * 8)
    assert all(re.fullmatch(pattern, output["text"]) for output in outputs), outputs
    assert {output["finish_reason"] for output in outputs} == {"stop"}


def test_any_json_object_begins_as_one(engine):
    (output,) = run(engine, make_params(json_object=True, max_tokens=20))
    assert output["text"].startswith("{")


def test_every_sample_has_its_own_place_in_the_grammar(engine):
    outputs = run(engine, make_params(json=PERSON, n=5))
    assert len({output["text"] for output in outputs}) > 1
    for output in outputs:
        assert set(json.loads(output["text"])) == {"name", "age", "tags"}


def test_min_tokens_cannot_push_a_text_past_its_grammar(engine):
    (output,) = run(engine, make_params(choice=["yes", "no"], min_tokens=30))
    assert output["text"] in ("yes", "no")
    assert output["finish_reason"] == "stop"


def test_min_tokens_lengthens_a_text_where_the_grammar_lets_it(engine):
    outputs = run(engine, [make_params(regex="[a-z]{1,200}", min_tokens=30, seed=s) for s in range(4)], [PROMPT] * 4)
    assert all(output["num_tokens_output"] > 30 for output in outputs)


def test_ignoring_the_end_of_sequence_still_ends_with_the_grammar(engine):
    (output,) = run(engine, make_params(choice=["yes", "no"], ignore_eos=True))
    assert output["text"] in ("yes", "no")
    assert output["finish_reason"] == "stop"


def test_a_stop_token_is_sampled_only_where_the_grammar_can_end(engine):
    assert engine.tokenizer is not None
    stop = engine.tokenizer.encode("a", add_special_tokens=False)
    outputs = run(
        engine, [make_params(regex="[a-c]{8}", stop_token_ids=stop, seed=seed) for seed in range(8)], [PROMPT] * 8
    )
    for output in outputs:
        assert re.fullmatch("[a-c]{8}a?", output["text"]), output["text"]


def test_penalties_and_biases_never_lift_a_mask(engine):
    params = make_params(choice=["yes", "no"], logit_bias={20: 100.0}, repetition_penalty=1.5, presence_penalty=-2.0)
    assert run(engine, params)[0]["text"] in ("yes", "no")


def test_reported_logprobs_are_those_of_the_model(engine):
    (output,) = run(engine, make_params(0.0, choice=["yes", "no"], logprobs=5))
    assert all(np.isfinite(entry.logprob) for entry in output["logprobs"])
    assert any(entry.rank > 1 for entry in output["logprobs"])


HOSTILE = {
    "nested repeats": {"regex": "(a+)+b"},
    "many wildcards": {"regex": "(.*a){200}"},
    "optional then fixed": {"regex": "(a?){5000}a{5000}"},
    "repeats of repeats": {"regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
    "alternatives": {"regex": "(a|b|ab|ba|.*c){40}(.*q.*){40}"},
    "wide schema": {"json": {"anyOf": [{"type": "object", "patternProperties": {f"^{n}.*": {}}} for n in range(300)]}},
}


@pytest.mark.timing
@pytest.mark.parametrize("constraint", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_grammar_costs_little_time(engine, constraint):
    started = time.monotonic()
    with contextlib.suppress(InvalidRequestError):  # refused, or followed for as long as it goes
        run(engine, make_params(max_tokens=10, **constraint))
    assert time.monotonic() - started < 5
    assert run(engine, make_params(choice=["ok"]))[0]["text"] == "ok"


deep: dict = {}
for _ in range(100):
    deep = {"properties": {"a": deep}}
BAD = {
    "an unclosed group": ({"regex": "(a"}, "regex is not valid"),
    "a pattern of no text": ({"regex": r"[^\s\S]"}, "no text follows it"),
    "look-around": ({"regex": "(?=a)b"}, "look-around"),
    "an unknown type": ({"json": {"type": "objct"}}, "json is not valid"),
    "a keyword that cannot be kept": ({"json": {"type": "object", "unevaluatedProperties": False}}, "unevaluated"),
    "text that is not JSON": ({"json": "{"}, "not JSON"),
    "a list": ({"json": [1]}, "must be a JSON object"),
    "an empty choice": ({"choice": []}, "choice must be"),
    "an empty text": ({"choice": [""]}, "choice must be"),
    "an unknown name": ({"grammar": 'start: "a" foo\n'}, "unknown name"),
    "nonsense": ({"grammar": "::= ::="}, "grammar"),
    "nothing": ({}, "exactly one of"),
    "two kinds": ({"regex": "a", "choice": ["a"]}, "regex and choice"),
    "a deep schema": ({"json": deep}, "nested deeper"),
    "a long schema": ({"json": {"enum": ["x" * 70_000]}}, "bytes"),
    "a long regex": ({"regex": "a" * 10_000}, "characters"),
    "a tag without triggers": ({"structural_tag": {"structures": []}}, "triggers"),
    "allowed tokens too": ({"regex": "a", "allowed_token_ids": [5]}, "exclude each other"),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_a_bad_constraint_is_refused_with_its_reason(engine, options, words):
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as caught:
        run(engine, make_params(**options))
    assert caught.value.param == "structured_outputs"


def test_what_is_wrong_with_a_schema_is_told_without_the_grammar_that_it_became(engine):
    form = {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": {"type": "objct"}}]}
    tag = {"type": "structural_tag", "format": form}
    with pytest.raises(InvalidRequestError) as caught:
        run(engine, make_params(structural_tag=tag))
    assert caught.value.message == "structured_outputs: structural_tag is not valid: Invalid type: objct"
    with pytest.raises(InvalidRequestError, match=r"at 1\(8\): unknown name: \"foo\" 1 | start: foo"):
        run(engine, make_params(grammar="start: foo"))


def test_a_bad_grammar_that_reaches_the_core_ends_its_own_request_only(engine):
    core, inputs = engine._core, engine._inputs
    bad, good = (
        next(inputs.process([PROMPT], make_params(**option)).samples())
        for option in ({"regex": "(a"}, {"choice": ["b"]})
    )
    core.add_request(bad)
    core.add_request(good)
    news = []
    while core.has_unfinished():
        news += core.step()
    finish = {output.request_id: output for output in news if output.finish_reason}
    assert finish[bad.request_id].finish_reason == "error"
    assert "unclosed" in (finish[bad.request_id].error or "")
    assert finish[good.request_id].finish_reason == "stop"
    assert not core._constrained._followed


def test_aborted_requests_leave_no_matcher_behind(engine):
    ids = engine.add_request([PROMPT] * 3, make_params(json=PERSON))
    engine.abort(ids[:1])
    for _ in range(4):
        engine.step()
    engine.abort(ids)
    while not engine.is_finished():
        engine.step()
    assert not engine._core._constrained._followed
    assert not engine._core._constrained.has_waiting()


@pytest.mark.parametrize("failing_step", [3, 4])
def test_a_failed_step_ends_its_constrained_requests_and_nothing_more(make_engine, failing_step):
    engine = make_engine()
    runner = engine._core._executor._runner
    forward, steps = runner.forward, iter(range(1, 1000))

    def failing(step):
        if next(steps) == failing_step:
            raise RuntimeError("the device is on fire")
        forward(step)

    runner.forward = failing
    outputs = run(engine, make_params(json=PERSON, n=2))
    assert [output["finish_reason"] for output in outputs] == ["error", "error"]
    assert not engine._core._constrained._followed
    assert run(engine, make_params(choice=["ok"]))[0]["text"] == "ok"


def test_padding_rows_of_the_head_are_never_allowed(engine):
    assert engine.tokenizer is not None
    padded = engine.tokenizer.vocab_size + 40
    matcher = make_matcher(engine, StructuredOutputParams(regex="(?s:.)*"), vocab_size=padded)
    allowed = unpacked(matcher.mask(), padded)
    assert allowed.any()
    assert not allowed[engine.tokenizer.vocab_size :].any()


def test_bad_words_are_not_generated(engine):
    assert engine.tokenizer is not None
    plain = run(engine, SamplingParams(temperature=0.0, max_tokens=40))[0]
    words = [engine.tokenizer.decode(plain["token_ids"][start : start + 2]) for start in (0, 5, 9)]
    words = [word.strip() for word in words if word.strip() and "\ufffd" not in word]
    banned = run(engine, SamplingParams(temperature=0.0, max_tokens=40, bad_words=words))[0]
    assert words
    sequences = [engine.tokenizer.encode(word, add_special_tokens=False) for word in words]
    for ids in sequences:
        spots = range(len(banned["token_ids"]) - len(ids) + 1)
        assert not any(banned["token_ids"][spot : spot + len(ids)] == ids for spot in spots)


def test_bad_words_leave_the_only_way_on(engine):
    assert run(engine, make_params(choice=["yes"], bad_words=["y", "e", "s", "yes"]))[0]["text"] == "yes"
