"""What an answer counts, and what its log-probabilities stand for, token by token."""

from __future__ import annotations

import json
import math

import httpx
import pytest

from atom_core import CompletionLogprobs
from atom_core.tokenization import Tokenizer
from atom_server.answers.logprobs import by_id, chat_logprobs, prompt_logprobs, text_logprobs

TEXT = "Once upon a time"
CHAT = [{"role": "user", "content": "Tell me a story."}]
PATHS = {"text": "/v1/completions", "chat": "/v1/chat/completions"}


def ask(server, kind="text", **fields):
    said = {"messages": CHAT} if kind == "chat" else {"prompt": TEXT}
    body = said | {"temperature": 1.0, "seed": 3, "max_tokens": 6, "ignore_eos": True} | fields
    answer = server.post(PATHS[kind], **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks_of(server, kind="text", **fields):
    said = {"messages": CHAT} if kind == "chat" else {"prompt": TEXT}
    body = said | {"temperature": 1.0, "seed": 3, "max_tokens": 6, "ignore_eos": True, "stream": True} | fields
    lines = httpx.post(server.url + PATHS[kind], json=body, timeout=60).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PATHS)
def test_samples_share_one_prompt_in_the_usage_and_their_tokens_add_up(server, kind):
    single = ask(server, kind)["usage"]
    usage = ask(server, kind, n=3)["usage"]
    assert single["completion_tokens"] == 6
    assert usage["prompt_tokens"] == single["prompt_tokens"] > 0
    assert usage["completion_tokens"] == 18
    assert usage["total_tokens"] == usage["prompt_tokens"] + 18


def test_guesses_are_counted_in_the_usage_and_in_the_metrics(make_server):
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
    with make_server(speculative_config=speculation) as server:
        answer = ask(server, max_tokens=60, temperature=0.0, n=2)
        details = answer["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0
        assert details["rejected_prediction_tokens"] > 0
        server.wait_until_idle()
        lines = dict(
            line.rsplit(" ", 1) for line in httpx.get(server.url + "/metrics").text.splitlines() if line[0] != "#"
        )
        counts = {name.partition(":")[2]: float(value) for name, value in lines.items() if "spec_decode" in name}
    by_name = {name.partition("{")[0]: count for name, count in counts.items()}
    num_guessed = details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
    assert by_name["spec_decode_num_draft_tokens_total"] == num_guessed
    assert by_name["spec_decode_num_accepted_tokens_total"] >= details["accepted_prediction_tokens"]
    assert by_name["spec_decode_num_drafts_total"] <= num_guessed
    by_position = [count for name, count in counts.items() if "per_pos_total" in name]
    assert len(by_position) == 3
    assert sum(by_position) == by_name["spec_decode_num_accepted_tokens_total"]


@pytest.mark.parametrize("kind", PATHS)
def test_the_usage_of_a_stream_of_samples_is_that_of_the_whole_answer(server, kind):
    last = chunks_of(server, kind, n=3, stream_options={"include_usage": True})[-1]["usage"]
    whole = ask(server, kind, n=3)["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last[name] == whole[name]


def test_each_prompt_of_a_list_counts_once_however_many_samples_it_has(server):
    prompts = [[5, 6, 7], [8] * 20]
    usage = ask(server, prompt=prompts, n=2)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (23, 24)


def test_samples_that_end_early_count_the_tokens_that_they_have(server):
    whole = ask(server, n=3, return_token_ids=True, max_tokens=12)
    stop = whole["choices"][1]["token_ids"][4]
    answer = ask(server, n=3, return_token_ids=True, max_tokens=12, stop_token_ids=[stop])
    lengths = [len(choice["token_ids"]) for choice in answer["choices"]]
    assert lengths[1] == whole["choices"][1]["token_ids"].index(stop) + 1
    assert answer["usage"]["completion_tokens"] == sum(lengths) < 36


def test_cached_tokens_are_those_of_the_prompt_and_count_once(server):
    prompt = [9 + index % 300 for index in range(70)]
    salt = {"prompt": prompt, "cache_salt": "usage"}
    first, again = (ask(server, n=2, **salt)["usage"]["prompt_tokens_details"] for _ in range(2))
    assert (first["cached_tokens"], again["cached_tokens"]) == (0, 64)


# --- text offsets ----------------------------------------------------------------------------------------------------


def assert_tokens_stand_at_their_offsets(text, logprobs, *, first=0):
    assert logprobs["text_offset"][0] == first
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[offset : offset + len(token)] == token


@pytest.mark.parametrize("echo", [False, True])
def test_each_token_stands_at_its_text_offset(server, echo):
    answer = ask(server, prompt=[TEXT, "1 2 3"], n=2, logprobs=1, echo=echo, logit_bias=letters(server))
    assert len(answer["choices"]) == 4
    for choice in answer["choices"]:
        assert_tokens_stand_at_their_offsets(choice["text"], choice["logprobs"])
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


@pytest.mark.parametrize("echo", [False, True])
def test_each_token_of_a_stream_stands_at_its_text_offset(server, echo):
    fields = {"prompt": [TEXT, "1 2 3"], "n": 2, "logprobs": 1, "echo": echo, "logit_bias": letters(server)}
    choices = [choice for chunk in chunks_of(server, **fields) for choice in chunk["choices"]]
    for index in range(4):
        news = [choice for choice in choices if choice["index"] == index]
        text = "".join(choice["text"] for choice in news)
        parts = [choice["logprobs"] for choice in news if choice["logprobs"] and choice["logprobs"]["tokens"]]
        assert len(parts) > 2
        whole = {name: [value for part in parts for value in part[name]] for name in ("tokens", "text_offset")}
        assert_tokens_stand_at_their_offsets(text, whole)
        assert "".join(whole["tokens"]) == text


def letters(server):
    """A bias by which only whole letters come, no halves of characters."""
    return {str(server.engine.tokenizer.encode(letter, False)[0]): 90.0 for letter in "abcdefgh"}


def test_a_text_offset_counts_characters_and_not_bytes():
    entries = [CompletionLogprobs(index, text, -1.0, 1, ()) for index, text in enumerate(["ä", "漢字", "x"])]
    assert text_logprobs(entries).text_offset == [0, 1, 3]
    assert text_logprobs([None, *entries], first_token=(9, "abc"), offset=2).text_offset == [2, 5, 6, 8]


# --- stop strings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [False, True])
def test_logprobs_and_token_ids_end_with_the_token_that_completes_the_stop_string(server, include):
    fields = {"logprobs": 0, "return_token_ids": True, "logit_bias": letters(server), "max_tokens": 12}
    plain = ask(server, **fields)["choices"][0]
    assert len(set(plain["text"])) > 2
    stop = plain["text"][4:6]
    end = plain["text"].index(stop) + 2
    cut = ask(server, **fields, stop=["zzz", stop], include_stop_str_in_output=include)
    choice = cut["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["text"] == plain["text"][: end if include else end - 2]
    assert choice["token_ids"] == plain["token_ids"][:end]
    assert choice["logprobs"]["tokens"] == plain["logprobs"]["tokens"][:end]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain["logprobs"]["token_logprobs"][:end], abs=1e-4)
    assert cut["usage"]["completion_tokens"] == end


def test_the_earliest_of_two_stop_strings_ends_the_text(server):
    fields = {"logit_bias": letters(server), "max_tokens": 12}
    text = ask(server, **fields)["choices"][0]["text"]
    early, late = text[3], next(letter for letter in text[4:] if letter not in text[:4])
    for stops in ([early, late], [late, early]):
        choice = ask(server, **fields, stop=stops)["choices"][0]
        assert (choice["text"], choice["stop_reason"]) == (text[: text.index(early)], early)


# --- formats ---------------------------------------------------------------------------------------------------------

TOP = ((4, " a", -0.25), (5, "b", -1.5), (6, "b", -2.0))
ENTRY = CompletionLogprobs(9, "c", -3.0, 7, TOP)


def test_a_text_completion_tells_the_likeliest_tokens_and_the_chosen_one():
    told = text_logprobs([None, ENTRY], first_token=(1, "x"))
    assert told.tokens == ["x", "c"]
    assert told.token_logprobs == [None, -3.0]
    # The likeliest of the tokens that read alike counts.
    assert told.top_logprobs == [None, {" a": -0.25, "b": -1.5, "c": -3.0}]


def test_the_chosen_token_is_not_told_twice():
    entry = CompletionLogprobs(4, " a", -0.25, 1, TOP[:1])
    assert text_logprobs([entry]).top_logprobs == [{" a": -0.25}]


def test_tokens_may_be_told_by_their_ids():
    told = text_logprobs([None, ENTRY], first_token=(1, "x"), spelling=by_id)
    assert told.tokens == ["token_id:1", "token_id:9"]
    assert list(told.top_logprobs[1] or ()) == ["token_id:4", "token_id:5", "token_id:6", "token_id:9"]
    assert told.text_offset == [0, 1]
    [told] = chat_logprobs([ENTRY], None, 1, by_id).content
    assert (told.token, [top.token for top in told.top_logprobs]) == ("token_id:9", ["token_id:4"])


def test_a_chat_tells_as_many_of_the_likeliest_tokens_as_were_asked_for():
    for count in (0, 2, 3, 20):
        [told] = chat_logprobs([ENTRY], None, count).content
        assert (told.token, told.logprob, list(told.bytes or ())) == ("c", -3.0, [99])
        assert [(top.token, top.logprob) for top in told.top_logprobs] == [top[1:] for top in TOP[:count]]


def test_bytes_of_a_token_are_exact_where_it_is_part_of_a_character(tiny_llama):
    tokenizer = Tokenizer.from_folder(tiny_llama)
    half = next(token_id for token_id in range(512) if tokenizer.id_to_bytes(token_id) == b"\xc3")
    entry = CompletionLogprobs(half, "\ufffd", -1.0, 1, ((half, "\ufffd", -1.0),))
    [told] = chat_logprobs([entry], tokenizer, 1).content
    assert list(told.bytes or ()) == list(told.top_logprobs[0].bytes or ()) == [0xC3]


def test_prompt_logprobs_are_keyed_by_token_id_with_their_ranks():
    first, row = prompt_logprobs([ENTRY])
    assert first is None
    assert row == {
        "4": {"logprob": -0.25, "rank": 1, "decoded_token": " a"},
        "5": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
        "6": {"logprob": -2.0, "rank": 3, "decoded_token": "b"},
        "9": {"logprob": -3.0, "rank": 7, "decoded_token": "c"},
    }


def test_never_is_a_number_that_json_has():
    never = CompletionLogprobs(9, "c", -math.inf, 7, ((4, "a", -math.inf),))
    assert text_logprobs([never]).token_logprobs == [-9999.0]
    assert text_logprobs([never]).top_logprobs == [{"a": -9999.0, "c": -9999.0}]
    [told] = chat_logprobs([never], None, 1).content
    assert (told.logprob, told.top_logprobs[0].logprob) == (-9999.0, -9999.0)
    assert {entry["logprob"] for entry in (prompt_logprobs([never])[1] or {}).values()} == {-9999.0}


def test_stretches_of_logprobs_join_in_order():
    first, second = text_logprobs([None], first_token=(1, "x")), text_logprobs([ENTRY], offset=1)
    whole = text_logprobs([None, ENTRY], first_token=(1, "x"))
    for name in whole.__struct_fields__:
        assert getattr(whole, name) == getattr(first, name) + getattr(second, name)
