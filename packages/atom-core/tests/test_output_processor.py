"""What `RequestOutput` says of a sample while its news come: counts, times, texts of log-probabilities, ends."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

from atom_core import SamplingParams
from atom_core.engine.outputs import output_processor
from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.messages import EngineOutput, EngineRequest, RequestOutput, TokenLogprobs
from atom_core.tokenization import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_llama)


def make_request(request_id: str = "r", *, prompt=(5, 6, 7), index: int = 0, parent: str | None = None, **params):
    resolved = SamplingParams(**{"temperature": 0.0, "max_tokens": 50, "seed": 0} | params)
    ids = {"parent_id": parent, "sample_index": index, "arrival_time": time.monotonic() - 10.0}
    return EngineRequest(request_id, list(prompt), resolved, **ids)


def outputs_of(processor: OutputProcessor, *news: EngineOutput) -> list[RequestOutput]:
    return [output for item in news for output in processor.process([item]).outputs]


def opened(tokenizer: Tokenizer | None, *requests: EngineRequest) -> OutputProcessor:
    processor = OutputProcessor(tokenizer)
    for request in requests:
        processor.add(request)
    return processor


def test_tokens_are_counted_from_the_first_to_the_last_and_the_prompt_once(tokenizer):
    processor = opened(tokenizer, make_request())
    news = [EngineOutput("r", [9]), EngineOutput("r", [10, 11]), EngineOutput("r", [12], finish_reason="length")]
    outputs = outputs_of(processor, *news)
    assert [output.num_output_tokens for output in outputs] == [1, 3, 4]
    assert [output.num_prompt_tokens for output in outputs] == [3, 3, 3]
    assert [output.output_tokens for output in outputs] == [[9], [10, 11], [12]]
    assert [output.finished for output in outputs] == [False, False, True]
    assert [output.finish_reason for output in outputs] == [None, None, "length"]


def test_nothing_is_made_for_the_text_of_a_sample_that_ends_before_its_first_token(tokenizer, monkeypatch):
    made: list[str] = []
    monkeypatch.setattr(output_processor, "IncrementalDetokenizer", lambda *_, **__: made.append("one"))
    [ended] = outputs_of(opened(tokenizer, make_request()), EngineOutput("r", [], finish_reason="abort"))
    assert (ended.finish_reason, ended.text_delta, made) == ("abort", "", [])


def test_the_time_to_the_first_token_stays_and_the_latency_grows(tokenizer):
    processor = opened(tokenizer, make_request())
    waiting, first, second = outputs_of(
        processor, EngineOutput("r", []), EngineOutput("r", [9]), EngineOutput("r", [10], finish_reason="length")
    )
    assert waiting.ttft == 0.0
    assert 10.0 <= first.ttft == first.latency < 70.0
    assert second.ttft == first.ttft < second.latency


def test_cached_tokens_that_were_told_once_are_told_to_the_end(tokenizer):
    processor = opened(tokenizer, make_request())
    news = [EngineOutput("r", [9], num_cached_tokens=16), EngineOutput("r", [10], num_cached_tokens=0)]
    assert [output.num_cached_tokens for output in outputs_of(processor, *news)] == [16, 16]


def test_samples_answer_under_the_name_of_their_request_with_their_numbers(tokenizer):
    siblings = [make_request(f"p/{index}", index=index, parent="p") for index in range(2)]
    processor = opened(tokenizer, *siblings, make_request("alone"))
    outputs = outputs_of(processor, *(EngineOutput(name, [9]) for name in ("p/1", "alone", "p/0")))
    assert [(output.request_id, output.index) for output in outputs] == [("p", 1), ("alone", 0), ("p", 0)]


def test_closing_a_request_forgets_its_samples_and_no_others(tokenizer):
    siblings = [make_request(f"p/{index}", index=index, parent="p") for index in range(2)]
    processor = opened(tokenizer, *siblings, make_request("alone"))
    assert processor.close("p") == ["p/0", "p/1"]
    assert [
        output.request_id for output in outputs_of(processor, EngineOutput("p/0", [9]), EngineOutput("alone", [9]))
    ] == ["alone"]
    assert processor.close("alone") == ["alone"]
    assert processor.num_open == 0


def test_a_sample_that_a_stop_string_ended_is_to_be_aborted_and_others_are_not(tokenizer):
    text = tokenizer.encode("a.", add_special_tokens=False)
    requests = [make_request(name, stop_strings=["."]) for name in ("stopped", "both", "open")]
    processor = opened(tokenizer, *requests)
    processed = processor.process(
        [
            EngineOutput("stopped", text),
            EngineOutput("both", text, finish_reason="length"),
            EngineOutput("open", text[:1]),
        ]
    )
    assert processed.stopped_request_ids == ["stopped"]
    assert [(o.finish_reason, o.stop_reason) for o in processed.outputs] == [("stop", ".")] * 2 + [(None, None)]
    assert processor.num_open == 1


def test_a_stop_token_is_named_and_ends_the_text_before_itself(tokenizer):
    letter, stop = tokenizer.encode("ab", add_special_tokens=False)
    processor = opened(tokenizer, make_request())
    [output] = outputs_of(processor, EngineOutput("r", [letter, stop], finish_reason="stop", stop_reason=stop))
    assert (output.text_delta, output.finish_reason, output.stop_reason) == ("a", "stop", stop)
    assert (output.output_tokens, output.num_output_tokens) == ([letter, stop], 2)


def test_the_last_token_of_what_ends_by_length_is_text(tokenizer):
    processor = opened(tokenizer, make_request())
    token_ids = tokenizer.encode("ab", add_special_tokens=False)
    [output] = outputs_of(processor, EngineOutput("r", token_ids, finish_reason="length"))
    assert output.text_delta == "ab"


def test_half_a_character_at_the_end_is_no_text(tokenizer):
    half = next(token_id for token_id in range(512) if tokenizer.id_to_bytes(token_id) == b"\xc3")
    [letter] = tokenizer.encode("x", add_special_tokens=False)
    processor = opened(tokenizer, make_request(stop_strings=["xy"]))
    outputs = outputs_of(processor, EngineOutput("r", [letter, half]), EngineOutput("r", [], finish_reason="length"))
    assert [(output.text_delta, output.finish_reason) for output in outputs] == [("", None), ("x", "length")]


def test_logprobs_have_the_texts_of_their_tokens(tokenizer):
    letter, other = tokenizer.encode("ab", add_special_tokens=False)
    entry = TokenLogprobs(letter, -1.0, 2, [(other, -0.5), (letter, -1.0)])
    processor = opened(tokenizer, make_request(logprobs=2, prompt_logprobs=2))
    first, second = outputs_of(
        processor,
        EngineOutput("r", [letter], logprobs=[entry], prompt_logprobs=[entry, entry]),
        EngineOutput("r", [other]),
    )
    [told] = first.logprobs or []
    assert (told.token_id, told.token, told.logprob, told.rank) == (letter, "a", -1.0, 2)
    assert told.top == ((other, "b", -0.5), (letter, "a", -1.0))
    assert first.prompt_logprobs == [told, told]
    assert (second.logprobs, second.prompt_logprobs) == (None, None)
    [bare] = outputs_of(opened(None, make_request()), EngineOutput("r", [letter], logprobs=[entry]))
    assert [(entry.token, entry.top[0][1]) for entry in bare.logprobs or ()] == [("", "")]


def test_special_tokens_are_text_only_where_they_are_asked_for(tokenizer):
    special = sorted(tokenizer.special_token_ids)[:2]
    [letter] = tokenizer.encode("x", add_special_tokens=False)
    spelt = [tokenizer.id_to_text(token_id) for token_id in special]
    cases: list[tuple[Any, str]] = [
        ({}, "x"),
        ({"skip_special_tokens": False}, spelt[0] + "x" + spelt[1]),
        ({"kept_special_token_ids": [special[1]]}, "x" + spelt[1]),
    ]
    for params, text in cases:
        [output] = outputs_of(
            opened(tokenizer, make_request(**params)),
            EngineOutput("r", [special[0], letter, special[1]], finish_reason="length"),
        )
        assert output.text_delta == text


def test_all_that_is_open_ends_with_one_reason(tokenizer):
    processor = opened(tokenizer, make_request("a"), make_request("b"))
    outputs_of(processor, EngineOutput("a", [9], finish_reason="length"))
    [output] = processor.finish_all("error", "the engine died")
    assert (output.request_id, output.finish_reason, output.error) == ("b", "error", "the engine died")
    assert processor.num_open == 0
    assert processor.finish_all("error") == []


def test_what_only_some_news_have_is_passed_on(tokenizer):
    processor = opened(tokenizer, make_request())
    news = EngineOutput("r", [], finish_reason="error", error="no such grammar", error_code="invalid_grammar")
    [output] = outputs_of(processor, news)
    assert (output.error, output.error_code) == ("no such grammar", "invalid_grammar")
    processor = opened(tokenizer, make_request())
    [output] = outputs_of(processor, EngineOutput("r", [], finish_reason="stop", embedding=[0.5, 1.0]))
    assert output.embedding == [0.5, 1.0]


def test_the_garbage_collector_does_not_go_through_the_log_probabilities_that_an_answer_keeps():
    """A collection takes as long as it has objects to look at, and everybody waits for it."""
    entries = [TokenLogprobs(9, -1.0, 1, []) for _ in range(3)]
    [output] = outputs_of(opened(None, make_request()), EngineOutput("r", [], prompt_logprobs=entries))
    kept = [one for entry in output.prompt_logprobs for one in (entry, entry.top)]
    assert not [one for one in kept if gc.is_tracked(one)]
