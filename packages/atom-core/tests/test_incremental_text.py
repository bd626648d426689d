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
from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.messages import EngineOutput, EngineRequest, TokenLogprobs
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
@example("a replacement character that was written: \ufffd")
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
    assert len("".join(shown[:12])) >= 6  # no character is as long as that


def test_a_space_at_the_border_of_the_prompt_is_kept():
    backend = Backend(models.BPE(vocab={"▁the": 0, "▁cat": 1, "<0xF0>": 2}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = Tokenizer(backend)
    detokenizer = IncrementalDetokenizer(tokenizer, [0])
    assert detokenizer.add(1) == " cat"
    assert tokenizer.id_to_text(1) == " cat"
    assert tokenizer.id_to_bytes(2) == b"\xf0"


@settings(deadline=None)
@given(
    st.text(alphabet="abc", max_size=40),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4),
    st.data(),
    st.booleans(),
)
def test_stop_strings_cut_a_text_where_they_would_cut_the_whole(text, stops, data, include):
    """The first to be complete behind the skipped pieces: of several at once the earliest, then the longest."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    num_skipped = data.draw(st.integers(0, len(pieces)))
    matcher = StopStringMatcher(stops, include_stop_string=include)
    shown = "".join(matcher.skip(piece) for piece in pieces[:num_skipped])
    seen = skipped = "".join(pieces[:num_skipped])
    for piece in pieces[num_skipped:]:
        shown, seen = shown + matcher.add(piece), seen + piece
        places = [(seen.find(stop, max(0, len(skipped) - len(stop) + 1)), stop) for stop in stops]
        found = [(at, -len(stop), stop) for at, stop in places if at >= 0]
        if found:
            at, _, first = min(found)
            assert matcher.matched == first
            assert shown == (text[: at + len(first)] if include else text[:at])
            assert matcher.add("abc") == matcher.flush() == ""
            return
        held = seen[len(shown) :]
        assert matcher.matched is None
        assert seen.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)
    assert shown + matcher.flush() == text


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


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "a"), (1, "a"), (2, "a.b"), (3, "a.b"), (4, "a.b.c"), (6, "a.b.c.")]
)
def test_no_stop_string_ends_within_the_minimum_length(min_tokens, text, at_once, tokenizer):
    """As with stop tokens: one more token than the minimum is the first that can end it."""
    token_ids = tokenizer.encode("a.b.c.", add_special_tokens=False)
    assert len(token_ids) == 6
    outputs, _ = feed(tokenizer, token_ids, at_once=at_once, stop_strings=["."], min_tokens=min_tokens)
    assert "".join(output.text_delta for output in outputs) == text


def test_a_stop_string_may_begin_within_the_minimum_length(tokenizer):
    token_ids = tokenizer.encode("xEND.y", add_special_tokens=False)
    first = next(count for count in range(6) if "E" in tokenizer.decode(token_ids[:count]))
    outputs, stopped = feed(tokenizer, token_ids, stop_strings=["END."], min_tokens=first)
    assert "".join(output.text_delta for output in outputs) == "x"
    assert stopped == ["r"]


def test_only_a_stop_string_that_ends_after_skipped_text_is_found():
    matcher = StopStringMatcher(["abcd", "bc", "cx"])
    assert matcher.skip("abc") == ""
    assert matcher.add("x") == "ab"
    assert matcher.matched == "cx"
    matcher = StopStringMatcher(["abcd", "bc", "d"])
    assert matcher.skip("zab") == "z"
    assert matcher.add("cd") == ""
    assert matcher.matched == "abcd"
    matcher = StopStringMatcher(["aa"])
    assert matcher.skip("aa") == "a"
    assert matcher.add("ba") == "ab"
    assert matcher.add("ac") == ""
    assert matcher.matched == "aa"


def test_skipped_text_stays_skipped_while_it_is_held_and_no_longer():
    matcher = StopStringMatcher(["abcd", "ab"])
    assert [matcher.skip("ab"), matcher.add("c"), matcher.add("x")] == ["", "", "abcx"]
    assert matcher.matched is None
    matcher = StopStringMatcher(["abcd", "ab"])
    assert [matcher.skip("ab"), matcher.add("xa"), matcher.add("b")] == ["", "abx", ""]
    assert matcher.matched == "ab"


def test_of_two_stop_strings_the_one_that_begins_earlier_ends_the_text(tokenizer):
    token_ids = tokenizer.encode("one two three", add_special_tokens=False)
    for stops in (["three", "two"], ["two", "three"]):
        outputs, _ = feed(tokenizer, token_ids, at_once=True, stop_strings=stops)
        assert (outputs[-1].text_delta, outputs[-1].stop_reason) == ("one ", "two")
        matcher = StopStringMatcher(stops)
        assert (matcher.add("one two three"), matcher.matched) == ("one ", "two")


def test_of_two_stop_strings_that_begin_together_the_longer_is_kept():
    for stops in (["ab", "abc"], ["abc", "ab"]):
        matcher = StopStringMatcher(stops, include_stop_string=True)
        assert (matcher.add("xabcd"), matcher.matched) == ("xabc", "abc")


@pytest.mark.parametrize("at_once", [False, True])
def test_logprobs_and_tokens_end_with_the_token_that_completes_a_stop_string(at_once, tokenizer):
    token_ids = tokenizer.encode("a.b;c.d", add_special_tokens=False)
    entries = [TokenLogprobs(token_id, -0.5 - place, 1, []) for place, token_id in enumerate(token_ids)]
    news = (
        [EngineOutput("r", token_ids, logprobs=entries)]
        if at_once
        else [EngineOutput("r", [t], logprobs=[entry]) for t, entry in zip(token_ids, entries, strict=True)]
    )
    processor = OutputProcessor(tokenizer)
    processor.add(make_request(stop_strings=["zz", ";"], logprobs=0))
    outputs = [output for item in news for output in processor.process([item]).outputs]
    reported = [entry for output in outputs for entry in output.logprobs or ()]
    assert [(entry.token, entry.logprob) for entry in reported] == [("a", -0.5), (".", -1.5), ("b", -2.5), (";", -3.5)]
    assert [token_id for output in outputs for token_id in output.output_tokens] == token_ids[:4]
    assert outputs[-1].num_output_tokens == 4


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
