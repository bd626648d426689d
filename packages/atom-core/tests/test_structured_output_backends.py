"""Two libraries behind one interface: which one follows a constraint, and that both follow it."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import jsonschema
import numpy as np
import pytest

from atom_core import LLMEngine, StructuredOutputParams
from atom_core.config import ConfigError
from atom_core.messages import EngineRequest
from atom_core.structured_output import Compilers, ConstrainedRequests, GrammarCompiler, GrammarError
from atom_core.structured_output.backend import Grammar, Parser
from atom_core.structured_output.bits import one_token, only_token
from atom_core.structured_output.compiler import DEADLINE_SECONDS, NUM_THREADS, QUEUE_SECONDS
from atom_core.structured_output.config import StructuredOutputConfig
from atom_core.structured_output.constraints.choice import choose
from atom_core.structured_output.llguidance.backend import LLGuidanceBackend
from atom_core.structured_output.llguidance.slices import slices_of
from atom_core.structured_output.vocabulary import Vocabulary
from grammars import BACKENDS, PERSON, PLACE, PROMPT, make_matcher, make_params, run, unpacked

OPEN = {"type": "object"}
INTEGERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
# Schemas, each with a value that they forbid: what xgrammar lets pass in silence.
IGNORED = {
    "multipleOf of a number": ({"type": "number", "multipleOf": 0.5}, "1.3"),
    "anyOf beside a type": ({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]}, "3"),
    "enum beside a type": ({"enum": [1, "a"], "type": "string"}, "1"),
    "$ref beside a bound": ({"$defs": {"i": {"type": "integer"}}, "$ref": "#/$defs/i", "minimum": 3}, "2"),
    "a keyword without a type": ({"minLength": 3}, '"a"'),
    "two schemas at once": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, "6"),
    "control characters": ({"type": "string", "maxLength": 5}, '"a\x01b"'),
    "a pattern and a length": ({"type": "string", "pattern": "^a+$", "maxLength": 2}, '"aaa"'),
    "a property only required": ({"type": "object", "properties": INTEGERS, "required": ["c"]}, '{"a": 1}'),
}
TRUSTED = {
    "an object": PLACE,
    "anything": {},
    "any object": OPEN,
    "a list": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    "a reference to itself": {
        "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "$ref": "#/$defs/node",
    },
    "a choice of types": {"type": ["integer", "null"]},
    "other properties": {"type": "object", "properties": INTEGERS, "additionalProperties": {"type": "null"}},
    "an annotation": {"type": "integer", "description": "how many", "title": "count"},
}


def text_fits(engine: LLMEngine, schema: dict, backend: str, text: str) -> bool:
    matcher = make_matcher(engine, StructuredOutputParams(json=schema), backend)
    assert engine.tokenizer is not None
    for token_id in engine.tokenizer.encode(text, add_special_tokens=False):
        if not unpacked(matcher.mask(), engine.info.vocab_size)[token_id]:
            return False
        matcher.accept([token_id])
    return matcher.is_accepting


@pytest.mark.parametrize(("schema", "text"), IGNORED.values(), ids=IGNORED)
def test_what_xgrammar_would_ignore_goes_to_llguidance(engine, schema, text):
    with pytest.raises(jsonschema.ValidationError if "\x01" not in text else ValueError):
        jsonschema.validate(json.loads(text), schema)
    assert text_fits(engine, schema, "xgrammar", text)
    assert not text_fits(engine, schema, "llguidance", text)
    for setting in ("auto", "xgrammar"):
        assert choose(StructuredOutputParams(json=schema), setting, True)[0] == ("llguidance",)


@pytest.mark.parametrize("keyword", ["format", "uniqueItems", "patternProperties", "minProperties", "x-new", "oneOf"])
def test_a_keyword_that_nobody_tried_is_not_left_to_xgrammar(keyword):
    params = StructuredOutputParams(json={"type": "object", "properties": INTEGERS, keyword: 1})
    names, why = choose(params, "xgrammar", True)
    assert names == ("llguidance",)
    assert "xgrammar" in why


@pytest.mark.parametrize("schema", TRUSTED.values(), ids=TRUSTED)
def test_what_xgrammar_enforces_goes_to_it_first(schema):
    assert choose(StructuredOutputParams(json=schema), "auto", True)[0] == ("xgrammar", "llguidance")


CHOICES = {
    "a choice": ({"choice": ["a"]}, "auto", ("xgrammar", "llguidance")),
    "any object": ({"json_object": True}, "auto", ("xgrammar", "llguidance")),
    "a pattern": ({"regex": "a+"}, "auto", ("llguidance",)),
    "a pattern, by setting": ({"regex": "a+"}, "xgrammar", ("llguidance",)),
    "long arrays": ({"json": {"type": "array", "items": {}, "maxItems": 99}}, "auto", ("llguidance",)),
    "long arrays, by setting": ({"json": {"type": "array", "items": {}, "maxItems": 99}}, "xgrammar", BACKENDS[::-1]),
    "GBNF, by setting": ({"grammar": 'root ::= "a"'}, "xgrammar", ("llguidance",)),
    "Lark": ({"grammar": 'start: "a"'}, "xgrammar", ("llguidance",)),
    "the other setting": ({"choice": ["a"]}, "llguidance", ("llguidance",)),
}


@pytest.mark.parametrize(("constraint", "setting", "names"), CHOICES.values(), ids=CHOICES)
def test_the_backend_follows_from_constraint_and_setting(constraint, setting, names):
    assert choose(StructuredOutputParams(**constraint), setting, True)[0] == names


def test_without_xgrammar_everything_goes_to_llguidance():
    for constraint in ({"choice": ["a"]}, {"json": PLACE}, {"json_object": True}):
        assert choose(StructuredOutputParams(**constraint), "auto", False)[0] == ("llguidance",)


def test_asking_for_xgrammar_where_it_is_missing_is_refused(tiny_llama, monkeypatch):
    monkeypatch.setattr("atom_core.structured_output.constraints.choice.has_xgrammar", lambda: False)
    with pytest.raises(ConfigError, match=re.escape("pip install 'xgrammar>=0.2.8'")):
        LLMEngine(str(tiny_llama), structured_output_backend="xgrammar", num_kv_blocks=16)


def test_taking_requests_in_imports_neither_xgrammar_nor_torch():
    code = (
        "import sys; from atom_core.engine.inputs.input_processor import InputProcessor;"
        "from atom_core import StructuredOutputParams;"
        "from atom_core.structured_output.constraints.checking import check_grammar;"
        "check_grammar(StructuredOutputParams(json={'type': 'object'}));"
        "print([name for name in ('xgrammar', 'torch', 'transformers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_the_choice_is_logged_once_with_its_reason(make_engine, caplog):
    caplog.set_level("INFO", logger="atom_core.structured_output.compilers")
    engine = make_engine()
    run(engine, [make_params(json=PERSON), make_params(json=PERSON, seed=2), make_params(json=PLACE)], [PROMPT] * 3)
    lines = [record.message for record in caplog.records]
    assert lines == [
        "structured output: json goes to llguidance: xgrammar is not known to enforce maxLength of type string",
        "structured output: json goes to xgrammar: it enforces all of this",
    ]


KINDS = {
    "choice": ({"choice": ["yes", "no", 'it\'s "so"']}, r"yes|no|it's \"so\""),
    "schema": ({"json": PLACE}, r'\{"kind": .*\}'),
    "gbnf": ({"grammar": 'root ::= "x" ("+" "x")? "=" [0-9]'}, r"x(\+x)?=[0-9]"),
    "regex": ({"regex": "[A-Z]{3}-[0-9]{2,4}"}, r"[A-Z]{3}-\d{2,4}"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("constraint", "pattern"), KINDS.values(), ids=KINDS)
def test_both_follow_each_kind_to_its_end(engine, constraint, pattern, backend):
    """A random walk through the masks ends with a text that fits, laid out as json.dumps does it."""
    rng = random.Random(0)
    for _ in range(5):
        matcher = make_matcher(engine, StructuredOutputParams(**constraint), backend)
        token_ids: list[int] = []
        while not token_ids or token_ids[-1] not in engine.info.eos_token_ids:
            allowed = np.flatnonzero(unpacked(matcher.mask(), engine.info.vocab_size)).tolist()
            token_ids.append(rng.choice(allowed))
            matcher.accept(token_ids[-1:])
        text = engine.tokenizer.decode(token_ids)
        assert re.fullmatch(pattern, text)
        if "json" in constraint:
            jsonschema.validate(json.loads(text), PLACE)
            assert json.dumps(json.loads(text)) == text


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_tokens_are_never_part_of_text(engine, backend):
    matcher = make_matcher(engine, StructuredOutputParams(json={"type": "string"}), backend)
    matcher.accept(engine.tokenizer.encode('"', add_special_tokens=False))
    allowed = unpacked(matcher.mask(), engine.info.vocab_size)
    assert allowed.sum() > 100
    assert not allowed[sorted(engine.tokenizer.special_token_ids)].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_does_not_follow_is_an_error_and_not_an_exception(engine, backend):
    matcher = make_matcher(engine, StructuredOutputParams(choice=["yes"]), backend)
    matcher.accept(engine.tokenizer.encode("zz", add_special_tokens=False))
    matcher.mask()
    assert matcher.error is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_tokens_are_those_that_a_mask_allows_alone(engine, backend):
    matchers = [make_matcher(engine, StructuredOutputParams(json=PLACE), backend) for _ in range(2)]
    forced = matchers[0].take_forced()
    assert len(forced) > 3
    for token_id in forced:
        assert np.flatnonzero(unpacked(matchers[1].mask(), engine.info.vocab_size)).tolist() == [token_id]
        assert unpacked(matchers[0].mask(), engine.info.vocab_size).nonzero()[0].tolist() == [token_id]
        for matcher in matchers:
            matcher.accept([token_id])
    assert (matchers[0].mask() == matchers[1].mask()).all()
    assert only_token(matchers[0].mask()) is None


def test_a_token_other_than_the_forced_one_is_an_error(engine):
    matcher = make_matcher(engine, StructuredOutputParams(json=PLACE))
    first, *_ = matcher.take_forced()
    matcher.accept([first + 1])
    assert "only" in (matcher.error or "")


@pytest.mark.parametrize("token_id", [0, 31, 32, 95])
def test_masks_of_one_token_are_told(token_id):
    assert only_token(one_token(token_id, 3)) == token_id
    assert only_token(one_token(token_id, 3) | one_token(token_id ^ 1, 3)) is None
    assert only_token(np.zeros(3, dtype=np.int32)) is None


def test_a_grammar_that_one_library_fails_at_goes_to_the_other(engine):
    """xgrammar hangs, or raises: llguidance takes over, and a request waits no longer than the deadline."""
    now = [0.0]
    hangs = threading.Event()
    requests = ConstrainedRequests(
        lambda: engine.tokenizer,
        vocab_size=engine.info.vocab_size,
        eos_token_ids=engine.info.eos_token_ids,
        clock=lambda: now[0],
    )
    request = EngineRequest("a", PROMPT, make_params(choice=["yes"]), eos_token_ids=engine.info.eos_token_ids)
    requests.hold(request)
    compilers = requests._waiting.compilers
    assert isinstance(compilers, Future)
    compilers.result(20)._compilers["xgrammar"] = GrammarCompiler(lambda params: hangs.wait(30), clock=lambda: now[0])
    assert requests.take_ready() == []
    now[0] += DEADLINE_SECONDS + 1
    assert requests.take_ready() == []
    compilers.result()._compilers["llguidance"].submit(request.sampling_params.structured_outputs).grammar.result(5)
    deadline = time.monotonic() + 20
    while not (ready := requests.take_ready()) and time.monotonic() < deadline:
        time.sleep(0.001)
    hangs.set()
    assert ready == [(request, None)]
    requests.close()


def test_a_request_whose_grammar_waits_too_long_is_no_fault_of_its_grammar(engine):
    now, hangs, begun = [0.0], threading.Event(), []
    requests = ConstrainedRequests(
        lambda: engine.tokenizer,
        vocab_size=engine.info.vocab_size,
        eos_token_ids=engine.info.eos_token_ids,
        config=StructuredOutputConfig(backend="llguidance"),
        clock=lambda: now[0],
    )

    def hold(name: str) -> EngineRequest:
        request = EngineRequest(name, PROMPT, make_params(choice=[name]), eos_token_ids=engine.info.eos_token_ids)
        requests.hold(request)
        return request

    busy = [hold(f"busy{number}") for number in range(NUM_THREADS)]
    compilers = requests._waiting.compilers.result(20)
    compiler = GrammarCompiler(lambda params: begun.append(params) or hangs.wait(30), clock=lambda: now[0])
    compilers._compilers["llguidance"] = compiler
    assert requests.take_ready() == []
    while len(begun) < NUM_THREADS:
        time.sleep(0.001)
    waiting, _ = hold("waiting"), hold("left")
    assert requests.take_ready() == []
    assert [output.finish_reason for output in requests.abort(["left"])] == ["abort"]
    now[0] += DEADLINE_SECONDS + 1
    assert {(request.request_id, refusal.code) for request, refusal in requests.take_ready()} == {
        (request.request_id, "invalid_grammar") for request in busy
    }
    now[0] += QUEUE_SECONDS
    assert [(request, refusal.code) for request, refusal in requests.take_ready()] == [(waiting, "queue_full")]
    hangs.set()
    compiler.check(StructuredOutputParams(choice=["last"]))
    assert len(begun) == NUM_THREADS + 1, "what nobody waited for any more was compiled"
    requests.close()


def test_grammars_are_forgotten_when_they_take_too_much_memory():
    def no_parser() -> Parser:
        raise AssertionError("nothing follows it")

    compiler = GrammarCompiler(lambda params: Grammar(no_parser, lambda: 40), max_bytes=100)
    for text in "abcd":
        compiler.submit(StructuredOutputParams(regex=text)).grammar.result(5)
    compiler.submit(StructuredOutputParams(regex="d")).grammar.result(5)
    assert len(compiler) == 2


SLICED = {
    "a class": ({"regex": "[a-z ]{1,400}"}, ("[a-z ]{1,30}",)),
    "an escape": ({"regex": r"\w{3,90}-\d{2}"}, (r"\w{1,30}",)),
    "a short repeat": ({"regex": "[a-z]{1,8}"}, ()),
    "in a schema": ({"json": {"properties": {"a": {"pattern": "^[0-9a-f]{64}$"}}}}, ("[0-9a-f]{1,30}",)),
    "no pattern": ({"json_object": True}, ()),
}


@pytest.mark.parametrize(("constraint", "slices"), SLICED.values(), ids=SLICED)
def test_repeated_classes_become_slices(constraint, slices):
    assert slices_of(StructuredOutputParams(**constraint)) == slices


@pytest.mark.parametrize("pattern", ["[a-z ]{1,400}", r"([a-f0-9]{2,30}-){2}\w{20}", r"[[a-z]{1,40}"])
def test_slices_change_no_mask(engine, pattern):
    vocabulary = Vocabulary(engine.tokenizer, engine.info.vocab_size)
    params = StructuredOutputParams(regex=pattern)
    sliced, plain = (LLGuidanceBackend(vocabulary, engine.info.eos_token_ids) for _ in range(2))
    plain._tokenizer_with = lambda slices: plain._tokenizer
    try:
        parsers = [backend.compile(params).start() for backend in (sliced, plain)]
    except GrammarError:
        assert pattern.startswith("[[")
        return
    rng = random.Random(0)
    for _ in range(40):
        masks = [np.zeros(-(-engine.info.vocab_size // 32), dtype=np.int32) for _ in parsers]
        for parser, mask in zip(parsers, masks, strict=True):
            parser.fill(mask)
        assert (masks[0] == masks[1]).all()
        allowed = np.flatnonzero(unpacked(masks[0], engine.info.vocab_size)).tolist()
        allowed = [token_id for token_id in allowed if token_id not in engine.info.eos_token_ids]
        if not allowed:
            return
        token_id = rng.choice(allowed)
        for parser in parsers:
            parser.accept(token_id)


def test_only_so_many_tokenizers_are_sliced(engine):
    vocabulary = Vocabulary(engine.tokenizer, engine.info.vocab_size)
    backend = LLGuidanceBackend(vocabulary, engine.info.eos_token_ids)
    for letter in "abcdefghijklm":
        backend.compile(StructuredOutputParams(regex=f"[{letter}z]{{1,40}}"))
    assert len(backend._sliced) == 8


def test_compilers_close_their_threads(engine):
    compilers = Compilers(engine.tokenizer, engine.info.vocab_size, engine.info.eos_token_ids)
    compilers.submit("llguidance", StructuredOutputParams(choice=["a"])).grammar.result(5)
    compilers.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        compilers.submit("llguidance", StructuredOutputParams(choice=["b"]))
