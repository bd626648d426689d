"""Chat completions, through the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

MESSAGES: Any = [{"role": "user", "content": "Tell me a story."}]


def chat(client, **fields):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    return client.chat.completions.create(**(settings | fields))


def streamed(client, **fields):
    return list(chat(client, stream=True, **fields))


def text_of(chunks, index=0):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def test_a_chat_completion_has_the_shape_that_clients_expect(client):
    answer = chat(client)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_usage_tells_cached_tokens_and_times(client):
    long = [{"role": "user", "content": "a long and stable beginning " * 8}]
    chat(client, messages=long)
    usage = chat(client, messages=long).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    assert 0 < usage.ttft_s <= usage.latency_s
    assert usage.tpot_s > 0


def test_a_stream_says_what_the_whole_answer_says(client):
    whole = chat(client, max_tokens=24)
    chunks = streamed(client, max_tokens=24)
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.id == chunks[0].id and chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_the_usage_chunk_comes_last_and_without_choices(client):
    *others, last = streamed(client, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in others)


def test_continuous_usage_is_in_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert all(chunk.usage is not None for chunk in streamed(client, stream_options=options))


def test_n_samples_differ_and_are_numbered(client):
    answer = chat(client, n=3, temperature=1.5, seed=7, max_tokens=16)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3


def test_streamed_samples_equal_whole_ones(client):
    fields = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 12}
    whole = chat(client, **fields)
    chunks = streamed(client, **fields)
    assert [text_of(chunks, index) for index in (0, 1)] == [choice.message.content for choice in whole.choices]


def test_a_seed_repeats_and_another_differs(client):
    first, second, other = (
        chat(client, temperature=1.0, seed=seed, max_tokens=16).choices[0].message.content for seed in (5, 5, 6)
    )
    assert first == second != other


def test_a_stop_string_ends_and_is_left_out(client):
    whole = chat(client, max_tokens=24)
    text = whole.choices[0].message.content
    stop = text[4:6]
    stopped = chat(client, max_tokens=24, stop=stop).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text[: text.index(stop)]
    included = chat(client, max_tokens=24, stop=[stop], extra_body={"include_stop_str_in_output": True}).choices[0]
    assert included.message.content == text[: text.index(stop) + len(stop)]


def test_ignore_eos_runs_to_max_tokens(client):
    answer = chat(client, max_tokens=40, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 40
    assert answer.choices[0].finish_reason == "length"


def test_max_completion_tokens_wins_over_max_tokens(client):
    answer = chat(client, max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 3


def test_without_max_tokens_the_context_is_filled(client, server):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == server.engine.info.max_model_len


def test_logprobs_hold_the_chosen_and_the_likely_tokens(client):
    choice = chat(client, logprobs=True, top_logprobs=3, max_tokens=4).choices[0]
    # Exact bytes join to the text, less a character that was left unfinished.
    spelt = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert spelt.decode(errors="ignore") == choice.message.content
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0  # greedy
        assert bytes(entry.bytes).decode(errors="replace") == entry.token


def test_streamed_logprobs_equal_whole_ones(client):
    whole = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    chunks = streamed(client, logprobs=True, top_logprobs=2)
    entries = [
        entry for chunk in chunks for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content
    ]
    assert entries == whole


def test_prompt_is_another_name_for_messages(server):
    expected = server.post("/v1/chat/completions", messages=MESSAGES, temperature=0, max_tokens=4).json()
    for prompt in (MESSAGES, "Tell me a story."):
        answer = server.post("/v1/chat/completions", prompt=prompt, temperature=0, max_tokens=4).json()
        assert answer["choices"][0]["message"] == expected["choices"][0]["message"]


def test_text_parts_are_joined(client):
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
    in_parts = chat(client, messages=[{"role": "user", "content": parts}])
    assert in_parts.choices[0].message.content == chat(client).choices[0].message.content


def test_any_served_name_works_and_answers_carry_it(client):
    assert chat(client, model="tiny-alias").model == "tiny-alias"


def test_an_unknown_model_is_the_clients_not_found_error(client):
    with pytest.raises(NotFoundError) as caught:
        chat(client, model="gpt-4o")
    assert caught.value.code == "model_not_found"
    assert "tiny" in str(caught.value)


def test_errors_reach_the_client_with_code_and_param(client):
    with pytest.raises(BadRequestError) as caught:
        chat(client, max_tokens=10**6)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


def test_the_async_client_streams(server):
    async def work() -> str:
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(work()) == chat(server.client()).choices[0].message.content


def test_events_are_separated_and_end_with_done(server):
    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body)
    events = answer.text.split("\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events[:-2])


def test_ignored_fields_are_named_in_a_header(server):
    answer = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1, frobnicate=1, user="me", **{"é\n": 1})
    assert answer.status_code == 200
    assert answer.headers["x-atom-ignored-fields"] == "frobnicate, ..."


def test_the_final_message_can_be_continued(server, client):
    started = [*MESSAGES, {"role": "assistant", "content": "Once upon"}]
    continued = chat(client, messages=started, extra_body={"continue_final_message": True})
    text = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\nOnce upon"
    tokens = server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]
    expected = server.post("/v1/completions", prompt=tokens, max_tokens=8, temperature=0).json()
    assert continued.choices[0].message.content == expected["choices"][0]["text"]
    assert continued.usage.prompt_tokens == len(tokens)
