"""Structural tags: free text, texts, JSON and tags put together, followed alike by both libraries."""

from __future__ import annotations

import re

import pytest

from atom_core import InvalidRequestError, StructuredOutputParams
from atom_core.structured_output import GrammarError
from atom_core.structured_output.constraints.checking import check_grammar
from atom_core.structured_output.constraints.choice import choose
from atom_core.structured_output.constraints.structural_tag import AnyText, TriggeredTags, format_of
from grammars import BACKENDS, make_matcher, make_params, run, unpacked

NUMBER = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
JSON = {"type": "json_schema", "json_schema": NUMBER}
ANY = {"type": "any_text"}


def tag(begin: str, content: dict = JSON, end: str = "</f>") -> dict:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict:
    return {"type": "const_string", "value": value}


def sequence(*elements: dict) -> dict:
    return {"type": "sequence", "elements": list(elements)}


def triggered(**options) -> dict:
    tags = [tag("<f=a>"), tag("<f=b>", {"type": "json_schema", "json_schema": {"type": "boolean"}})]
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": tags, **options}


def separated(**options) -> dict:
    return {"type": "tags_with_separator", "tags": [tag("<f>"), tag("<g>", ANY)], "separator": ", ", **options}


A, B = '<f=a>{"n": 2}</f>', "<f=b>true</f>"
THINKING = {"type": "optional", "content": tag("<think>", ANY, "</think>")}
LEGACY = {"structures": [{"begin": "<f=a>", "schema": NUMBER, "end": "</f>"}], "triggers": ["<f="]}
# A format, texts that are whole, and texts that cannot go on.
CASES = {
    "free text with tags": (
        triggered(),
        ["", "so", A, f"so {A} and {B}.", "<f"],
        ["<f=c", '<f=a>{"n":1', f"x {A}<f=x"],
    ),
    "a tag first": (triggered(at_least_one=True), [A, f"{A} and {B} so"], ["so", "<f=c"]),
    "one tag only": (triggered(stop_after_first=True), ["so", f"so {A}"], [f"{A} "]),
    "one tag, first": (triggered(at_least_one=True, stop_after_first=True), [A, B], ["x", f"{A} ", A + B]),
    "tags with separators": (separated(), ["", '<f>{"n": 1}</f>, <g>x</f>'], ["x", '<f>{"n": 1}</f><g']),
    "at least one of them": (separated(at_least_one=True), ["<g>any < text</f>"], ["x"]),
    "just one of them": (separated(at_least_one=True, stop_after_first=True), ["<g></f>"], ["<g></f>,"]),
    "thinking, then tags": (
        sequence(THINKING, triggered(at_least_one=True)),
        [A, f"<think>hm <f=c></think>{A}", f"<think></think>{B} so"],
        ["so", "<think>hm</think>so"],
    ),
    "free text up to a text": (sequence(ANY, const("END"), JSON), ['x EN END{"n": 1}'], ["x END{x"]),
    "text that leaves words out": (
        {"type": "any_text", "excludes": ["bad", "a.b"]},
        ["good, axb", "ba d"],
        ["so bad", "a.b"],
    ),
    "one of several": ({"type": "or", "elements": [const("yes"), const("no"), JSON]}, ["yes", '{"n": 1}'], ["yn"]),
    "repeats": (
        sequence({"type": "plus", "content": const("ab")}, {"type": "star", "content": const("-")}),
        ["ab", "abab--"],
        ["-", "ab-a"],
    ),
    "a pattern": (tag("<", {"type": "regex", "pattern": "[a-c]{2}"}, ">"), ["<ab>"], ["<abc", "<d"]),
    "quotes and line ends": (sequence(const('say "\n"'), tag("\t", ANY, "\\")), ['say "\n"\tx\\'], ['say "n']),
    "the older notation": (LEGACY, ["so", f"so {A}"], ["<f=b"]),
}


def follow(engine, matcher, text: str) -> bool:
    """Whether the masks let the text through, as the tokenizer writes it."""
    for token_id in engine.tokenizer.encode(text, add_special_tokens=False):
        if not unpacked(matcher.mask(), engine.info.vocab_size)[token_id]:
            return False
        matcher.accept([token_id])
        if matcher.error is not None:
            return False
    return True


def params_of(format_: dict) -> StructuredOutputParams:
    is_legacy = "structures" in format_
    return StructuredOutputParams(
        structural_tag=format_ if is_legacy else {"type": "structural_tag", "format": format_}
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("format_", "whole", "wrong"), CASES.values(), ids=CASES)
def test_a_format_takes_these_texts_and_not_those(engine, format_, whole, wrong, backend):
    check_grammar(params_of(format_))
    for text in whole:
        matcher = make_matcher(engine, params_of(format_), backend)
        assert follow_bytes(engine, matcher, text), text
        assert matcher.is_accepting, text
    for text in wrong:
        assert not follow_bytes(engine, make_matcher(engine, params_of(format_), backend), text), text


def follow_bytes(engine, matcher, text: str) -> bool:
    """Whether the grammar takes the text, whatever pieces a model would write it in."""
    for character in text:
        for token_id in engine.tokenizer.encode(character, add_special_tokens=False):
            matcher.accept([token_id])
        if matcher.error is not None:
            return False
    return True


@pytest.mark.parametrize("backend", BACKENDS)
def test_json_in_a_tag_is_laid_out_as_everywhere(engine, backend):
    schema = {"type": "array", "items": {"enum": [1]}, "minItems": 2}
    constraint = params_of(tag("<", {"type": "json_schema", "json_schema": schema}, ">"))
    assert follow_bytes(engine, make_matcher(engine, constraint, backend), "<[1, 1]>")
    for text in ("<[1,1]>", "<[ 1, 1]>", "<[1, 1 ]>", "<\n[1, 1]>"):
        assert not follow_bytes(engine, make_matcher(engine, constraint, backend), text)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrap", ["tag", "triggered", "required"])
def test_a_special_token_in_a_tag_is_the_token_itself(engine, backend, wrap):
    special_id = min(engine.tokenizer.special_token_ids - set(engine.info.eos_token_ids))
    special = engine.tokenizer.id_to_text(special_id)
    inner = tag(f"{special}call ", end="")
    options = {"at_least_one": wrap == "required"}
    format_ = inner if wrap == "tag" else {"type": "triggered_tags", "triggers": [special], "tags": [inner], **options}
    matcher = make_matcher(engine, params_of(format_), backend)
    if wrap == "triggered":
        assert follow(engine, matcher, "so ")
    assert unpacked(matcher.mask(), engine.info.vocab_size)[special_id]
    matcher.accept([special_id])
    assert follow_bytes(engine, matcher, 'call {"n": 1}')
    assert matcher.is_accepting
    # Spelt out in letters it is another text: allowed only where text is free.
    spelt = make_matcher(engine, params_of(format_), backend)
    letters = [i for c in special for i in engine.tokenizer.encode(c, add_special_tokens=False)]
    spelt.accept(letters)
    assert (spelt.error is None) == (wrap == "triggered")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_writes_a_call_where_one_is_required(make_engine, backend):
    engine = make_engine(structured_output_backend=backend)
    format_ = triggered(at_least_one=True, stop_after_first=True)
    outputs = run(
        engine, [make_params(structural_tag=params_of(format_).structural_tag, seed=s) for s in range(6)], PROMPTS
    )
    for output in outputs:
        assert re.fullmatch(r'<f=a>\{"n": [12]\}</f>|<f=b>(true|false)</f>', output["text"])
        assert output["finish_reason"] == "stop"


PROMPTS = [[5, 6, 7, index] for index in range(6)]
FOREIGN = {"type": "sequence", "elements": [{"type": "token", "token": 5}, const("x")]}


def test_formats_of_xgrammar_alone_go_to_it(engine):
    names, why = choose(params_of(FOREIGN), "auto", True)
    assert names == ("xgrammar",)
    assert "only xgrammar knows" in why
    matcher = make_matcher(engine, params_of(FOREIGN), "xgrammar")
    assert unpacked(matcher.mask(), engine.info.vocab_size).nonzero()[0].tolist() == [5]


def test_formats_of_xgrammar_alone_are_refused_without_it():
    with pytest.raises(GrammarError, match=re.escape("pip install 'xgrammar>=0.2.8'")):
        choose(params_of(FOREIGN), "auto", False)
    with pytest.raises(GrammarError, match="structured_output_backend is llguidance"):
        choose(params_of(FOREIGN), "llguidance", True)


def test_formats_of_xgrammar_alone_are_refused_at_once_by_an_engine_that_never_takes_it(make_engine):
    engine = make_engine(structured_output_backend="llguidance")
    with pytest.raises(InvalidRequestError, match="structured_output_backend is llguidance") as caught:
        engine.add_request([[5, 6]], make_params(structural_tag={"type": "structural_tag", "format": FOREIGN}))
    assert (caught.value.param, caught.value.code) == ("structured_outputs", "invalid_grammar")


@pytest.mark.parametrize(
    ("format_", "words"),
    [
        ({"type": "repeat", "min": 1, "content": const("x")}, "max"),
        ({"type": "repeat", "min": 1, "max": 2, "content": {"type": "nonsense"}}, "nonsense"),
        ({"type": "token", "token": "<no such token>"}, "not found in vocabulary"),
        ({"type": "token", "token": 10**6}, "out of the vocabulary"),
    ],
)
def test_a_bad_format_of_xgrammar_ends_its_request_with_the_reason(engine, format_, words):
    [output] = run(engine, make_params(structural_tag={"type": "structural_tag", "format": format_}))
    assert output["finish_reason"] == "error"
    assert re.fullmatch(f"structural_tag is not valid: [^/]*{words}[^/]*", output["error"])


def test_a_bound_of_tags_is_not_left_to_xgrammar(engine):
    format_ = {"type": "repeat", "min": 1, "max": 2, "content": {"type": "tag", "max_tags": 2}}
    with pytest.raises(InvalidRequestError, match="does not know 'max_tags'"):
        run(engine, make_params(structural_tag={"type": "structural_tag", "format": format_}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_tags_follow_than_are_allowed(engine, backend, most):
    for count in range(1, most + 2):
        matcher = make_matcher(engine, params_of(separated(max_tags=most)), backend)
        assert follow(engine, matcher, ", ".join(['<f>{"n": 1}</f>'] * count)) == (count <= most)


@pytest.mark.parametrize("content", [{"type": "regex", "pattern": "a"}, {"type": "grammar", "grammar": 'root ::= "a"'}])
def test_patterns_are_not_left_to_xgrammar_beside_its_own_formats(content):
    with pytest.raises(GrammarError, match="reads patterns its own way"):
        choose(params_of(sequence(FOREIGN, content)), "auto", True)


BAD = {
    "an unknown type": ({"type": "nonsense"}, "nonsense"),
    "a missing field": ({"type": "tag", "begin": "x", "end": ""}, "content"),
    "a wrong type": (const(5), "Expected `str`"),
    "an unknown field": ({**const("x"), "size": 3}, "size"),
    "no elements": (sequence(), "elements"),
    "an empty trigger": (triggered(triggers=[""]), "triggers"),
    "a tag without its trigger": (triggered(triggers=["<g="]), "begins with none of the triggers"),
    "an empty text to leave out": ({"type": "any_text", "excludes": [""]}, "excludes"),
    "a bad schema inside": (tag("x", {"type": "json_schema", "json_schema": {"type": "objct"}}), "objct"),
    "free text before a choice": (sequence(ANY, {"type": "or", "elements": [JSON, ANY]}), "free text must be last"),
    "too many tags": ({**separated(), "tags": [tag("x")] * 200}, "1 to 128"),
    "no tags at all": ({**separated(), "max_tags": 0}, "max_tags"),
    "not a format": (["x"], "Expected `object`"),
}


@pytest.mark.parametrize(("format_", "words"), BAD.values(), ids=BAD)
def test_a_bad_shape_is_refused_before_the_engine_sees_it(engine, format_, words):
    constraint = {"structural_tag": {"type": "structural_tag", "format": format_}}
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as caught:
        run(engine, make_params(**constraint))
    assert caught.value.param == "structured_outputs"


def test_both_notations_mean_the_same():
    assert format_of(LEGACY) == format_of(
        {"format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag("<f=a>")]}}
    )
    assert isinstance(format_of(LEGACY), TriggeredTags)
    assert format_of({"format": ANY}) == AnyText()
