"""Text that comes token by token: characters stay whole, stop strings are found wherever they lie."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from atom_core import SamplingParams
from atom_core.engine.output_processor import OutputProcessor
from atom_core.messages import EngineOutput, EngineRequest
from atom_core.tokenization import IncrementalDetokenizer, StopStringMatcher, Tokenizer
from tokenizer_kinds import make_bert, make_llama, make_unigram

RELAXED = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_llama)


def pieces_of(tokenizer: Tokenizer, token_ids: list[int], **options) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*(detokenizer.add(token_id) for token_id in token_ids), detokenizer.flush()]


@RELAXED
@given(st.text(max_size=30))
@example("🙂👨‍👩‍👧漢字")
def test_no_piece_of_a_text_holds_half_a_character(tokenizer, text):
    pieces = pieces_of(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@RELAXED
@given(st.lists(st.integers(0, 511), max_size=40), st.booleans())
def test_pieces_of_any_tokens_join_to_the_text_of_all(tokenizer, token_ids, skip_special_tokens):
    whole = tokenizer.decode(token_ids, skip_special_tokens)
    joined = "".join(pieces_of(tokenizer, token_ids, skip_special_tokens=skip_special_tokens))
    assert whole.startswith(joined)
    assert whole[len(joined) :].strip("\ufffd") == ""


KINDS = {
    "Llama 2": (make_llama, None),
    "Llama 2, a space stripped": (make_llama, [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "bytes that are the same in no two pieces": (
        make_llama,
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("\ufffd", 0, 1)],
    ),
    "words": (make_bert, [decoders.WordPiece()]),
    "likely pieces": (make_unigram, [decoders.Metaspace()]),
}


@pytest.mark.parametrize(("make", "parts"), KINDS.values(), ids=KINDS)
def test_a_step_never_fails_and_never_looks_at_more_than_a_few_tokens(make, parts):
    """Whatever tokens come: bytes that are no characters too, and runs that no decoder can cut."""
    tokenizer = make()
    if parts is not None:
        tokenizer.backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), *parts])
    decoded = []
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, *options: decoded.append(len(ids)) or decode(ids, *options)
    rng = random.Random(0)
    for token_ids in (*([i] * 100 for i in range(tokenizer.vocab_size)), rng.choices(range(256), k=5000)):
        pieces_of(tokenizer, list(token_ids), prompt_token_ids=[0, 1])
    assert max(decoded, default=0) <= 40


def test_bytes_that_never_become_a_character_are_not_held_for_ever(tokenizer):
    half = next(token_id for token_id in range(512) if tokenizer.id_to_bytes(token_id) == b"\xf0")
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = [detokenizer.add(half) for _ in range(100)]
    assert len("".join(shown)) >= 90


def test_a_space_at_the_border_of_the_prompt_is_kept():
    backend = Backend(models.BPE(vocab={"▁the": 0, "▁cat": 1, "<0xF0>": 2}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = Tokenizer(backend)
    detokenizer = IncrementalDetokenizer(tokenizer, [0])
    assert detokenizer.add(1) == " cat"
    assert tokenizer.id_to_text(1) == " cat"
    assert tokenizer.id_to_bytes(2) == b"\xf0"


@given(
    st.text(alphabet="abc", max_size=40),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4),
    st.data(),
    st.booleans(),
)
def test_stop_strings_cut_a_text_where_they_would_cut_the_whole(text, stops, data, include):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    matcher = StopStringMatcher(stops, include_stop_string=include)
    shown = ""
    for piece in pieces:
        shown += matcher.add(piece)
        if matcher.matched is not None:
            break
    else:
        shown += matcher.flush()
    if matcher.matched is None:
        assert shown == text
        assert not any(stop in text for stop in stops)
        return
    at = text.find(matcher.matched)
    # With pieces, the first stop string to be complete ends the text; it never shows anything from there on.
    assert shown == text[: at + len(matcher.matched)] if include else shown == text[:at]


def test_only_what_may_begin_a_stop_string_is_held_back():
    matcher = StopStringMatcher(["END"])
    assert matcher.add("the E") == "the "
    assert matcher.add("N") == ""
    assert matcher.add("x EN") == "ENx "
    assert matcher.flush() == "EN"


def make_request(**params) -> EngineRequest:
    return EngineRequest("r", [1], SamplingParams(temperature=0.0, max_tokens=50, seed=0, **params))


def feed(tokenizer: Tokenizer | None, token_ids: list[int], *, at_once: bool = False, last=None, **params):
    processor = OutputProcessor(tokenizer)
    processor.add(make_request(**params))
    news = [EngineOutput("r", token_ids)] if at_once else [EngineOutput("r", [token_id]) for token_id in token_ids]
    processed = [processor.process([item]) for item in [*news, *([last] if last else [])]]
    return [output for item in processed for output in item.outputs], [
        i for item in processed for i in item.stopped_request_ids
    ]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stop_string_over_several_tokens_ends_the_request_and_is_trimmed(tokenizer, at_once):
    token_ids = tokenizer.encode("one two!! three", add_special_tokens=False)
    outputs, stopped = feed(tokenizer, token_ids, at_once=at_once, stop_strings=["o!! t", "zzz"])
    assert "".join(output.text_delta for output in outputs) == "one tw"
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason, stopped) == ("stop", "o!! t", ["r"])
    used = [token_id for output in outputs for token_id in output.output_tokens]
    assert used == token_ids[: len(used)]
    assert len(used) < len(token_ids)
    assert outputs[-1].num_output_tokens == len(used)


def test_a_stop_string_can_be_kept(tokenizer):
    token_ids = tokenizer.encode("one two!! three", add_special_tokens=False)
    outputs, _ = feed(tokenizer, token_ids, stop_strings=["!!"], include_stop_str_in_output=True)
    assert "".join(output.text_delta for output in outputs) == "one two!!"


def test_stop_strings_do_not_count_before_the_minimum_length(tokenizer):
    token_ids = tokenizer.encode("a.b.c.", add_special_tokens=False)
    outputs, _ = feed(tokenizer, token_ids, stop_strings=["."], min_tokens=4)
    assert "".join(output.text_delta for output in outputs) == "a.b"


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(tokenizer):
    token_ids = tokenizer.encode("the EN", add_special_tokens=False)
    outputs, stopped = feed(
        tokenizer, token_ids, stop_strings=["END"], last=EngineOutput("r", [], finish_reason="length")
    )
    assert "".join(output.text_delta for output in outputs) == "the EN"
    assert outputs[-1].finish_reason == "length"
    assert stopped == []


def test_the_token_that_stopped_it_is_no_text_unless_asked_for(tokenizer):
    (token_id,) = tokenizer.encode("x", add_special_tokens=False)
    last = EngineOutput("r", [token_id], finish_reason="stop", stop_reason=token_id)
    assert feed(tokenizer, [], last=last)[0][-1].text_delta == ""
    assert feed(tokenizer, [], last=last, include_stop_str_in_output=True)[0][-1].text_delta == "x"


def test_without_a_tokenizer_there_are_tokens_and_no_text():
    outputs, _ = feed(None, [5, 6])
    assert [output.output_tokens for output in outputs] == [[5], [6]]
    assert {output.text_delta for output in outputs} == {""}


def test_news_of_a_request_that_ended_are_dropped(tokenizer):
    processor = OutputProcessor(tokenizer)
    processor.add(make_request())
    assert processor.process([EngineOutput("r", [5], finish_reason="length")]).outputs
    assert processor.process([EngineOutput("r", [6])]).outputs == []
    assert processor.num_open == 0
