# ruff: noqa: E501  (a table reads best with a row a line)
"""Everything that a client can get wrong: an answer in OpenAI's shape, and a server that goes on serving."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTEXT = 512


def chat(**fields):
    return CHAT, json.dumps({"messages": MESSAGES, "max_tokens": 1} | fields).encode()


def text(**fields):
    return TEXT, json.dumps({"prompt": "hello", "max_tokens": 1} | fields).encode()


def raw(body, path=CHAT):
    return path, body


def without(fields, path):
    return path, json.dumps(fields).encode()


# what is wrong: (path, body), status, param, code
BAD = {
    "unknown model": (chat(model="gpt-4o"), 404, "model", "model_not_found"),
    "unknown model for text": (text(model="gpt-4o"), 404, "model", "model_not_found"),
    "model of the wrong type": (chat(model=5), 400, "model", "invalid_type"),
    "no messages": (without({"max_tokens": 1}, CHAT), 400, "messages", "missing_required_parameter"),
    "empty messages": (chat(messages=[]), 400, "messages", "invalid_value"),
    "messages of the wrong type": (chat(messages=7), 400, "messages", "invalid_type"),
    "a message of the wrong type": (chat(messages=["hi"]), 400, "messages[0]", "invalid_type"),
    "a message without a role": (chat(messages=[{"content": "hi"}]), 400, "messages[0].role", "missing_required_parameter"),
    "content of the wrong type": (chat(messages=[{"role": "user", "content": 1}]), 400, "messages[0].content", "invalid_type"),
    "an image": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
        400, "messages[0].content", "invalid_value",
    ),
    "messages and prompt": (chat(prompt=MESSAGES), 400, "prompt", "invalid_value"),
    "messages over the context": (
        chat(messages=[{"role": "user", "content": "word " * 2000}]), 400, "prompt", "context_length_exceeded",
    ),
    "no prompt": (without({"max_tokens": 1}, TEXT), 400, "prompt", "missing_required_parameter"),
    "an empty list of prompts": (text(prompt=[]), 400, "prompt", "invalid_value"),
    "an empty list of token ids": (text(prompt=[[]]), 400, "prompt", "empty_prompt"),
    "a prompt of the wrong type": (text(prompt={"a": 1}), 400, "prompt", "invalid_value"),
    "a token id over the vocabulary": (text(prompt=[1, 99999]), 400, "prompt", "invalid_token_id"),
    "a negative token id": (text(prompt=[1, -1]), 400, "prompt", "invalid_value"),
    "a fraction as token id": (text(prompt=[1, 1.5]), 400, "prompt", "invalid_value"),
    "true as token id": (text(prompt=[True]), 400, "prompt", "invalid_value"),
    "a prompt over the context": (text(prompt=[5] * 600), 400, "prompt", "context_length_exceeded"),
    "one prompt of several over the context": (text(prompt=[[5], [5] * 600]), 400, "prompt", "context_length_exceeded"),
    "a text that no tokenizer could make fit": (text(prompt="a" * 400_000), 400, "prompt", "context_length_exceeded"),
    "max_tokens over the context": (chat(max_tokens=CONTEXT), 400, "max_tokens", "context_length_exceeded"),
    "max_tokens 0": (text(max_tokens=0), 400, "max_tokens", "invalid_value"),
    "max_tokens 0 in chat": (chat(max_tokens=0), 400, "max_tokens", "invalid_value"),
    "max_tokens negative": (chat(max_tokens=-1), 400, "max_tokens", "invalid_value"),
    "max_tokens a string": (chat(max_tokens="9"), 400, "max_tokens", "invalid_type"),
    "max_tokens a fraction": (chat(max_tokens=1.5), 400, "max_tokens", "invalid_type"),
    "max_tokens beyond any integer": (chat(max_tokens=10**40), 400, "max_tokens", "invalid_value"),
    "min_tokens over max_tokens": (chat(min_tokens=2), 400, "min_tokens", "invalid_value"),
    "temperature negative": (chat(temperature=-1), 400, "temperature", "invalid_value"),
    "temperature a string": (chat(temperature="hot"), 400, "temperature", "invalid_type"),
    "temperature a boolean": (chat(temperature=True), 400, "temperature", "invalid_type"),
    "temperature NaN": (raw(b'{"messages": [], "temperature": NaN}'), 400, None, "invalid_json"),
    "temperature infinite": (raw(b'{"messages": [], "temperature": Infinity}'), 400, None, "invalid_json"),
    "temperature beyond any float": (raw(b'{"messages": [], "temperature": 1e999}'), 400, None, "invalid_json"),
    "top_p 0": (chat(top_p=0), 400, "top_p", "invalid_value"),
    "top_p over 1": (chat(top_p=1.1), 400, "top_p", "invalid_value"),
    "top_k below -1": (chat(top_k=-2), 400, "top_k", "invalid_value"),
    "min_p over 1": (chat(min_p=2), 400, "min_p", "invalid_value"),
    "n huge": (chat(n=20000), 400, "n", "invalid_value"),
    "n 0": (chat(n=0), 400, "n", "invalid_value"),
    "n a string": (chat(n="2"), 400, "n", "invalid_type"),
    "a seed beyond 64 bits": (chat(seed=2**64), 400, "seed", "invalid_value"),
    "presence_penalty over 2": (chat(presence_penalty=3), 400, "presence_penalty", "invalid_value"),
    "frequency_penalty below -2": (chat(frequency_penalty=-3), 400, "frequency_penalty", "invalid_value"),
    "repetition_penalty 0": (chat(repetition_penalty=0), 400, "repetition_penalty", "invalid_value"),
    "logit_bias of a word": (chat(logit_bias={"word": 1}), 400, "logit_bias", "invalid_value"),
    "logit_bias over the vocabulary": (chat(logit_bias={"99999": 1}), 400, "logit_bias", "invalid_token_id"),
    "logit_bias over 100": (chat(logit_bias={"5": 101}), 400, "logit_bias[5]", "invalid_value"),
    "logit_bias a list": (chat(logit_bias=[1]), 400, "logit_bias", "invalid_type"),
    "allowed_token_ids empty": (chat(allowed_token_ids=[]), 400, "allowed_token_ids", "invalid_value"),
    "allowed_token_ids over the vocabulary": (chat(allowed_token_ids=[99999]), 400, "allowed_token_ids", "invalid_token_id"),
    "stop a number": (chat(stop=5), 400, "stop", "invalid_type"),
    "an empty stop string": (chat(stop=""), 400, "stop", "invalid_value"),
    "too many stop strings": (chat(stop=["x"] * 17), 400, "stop", "invalid_value"),
    "a very long stop string": (chat(stop="x" * 257), 400, "stop[0]", "invalid_value"),
    "a stop token id over the vocabulary": (chat(stop_token_ids=[99999]), 400, "stop_token_ids", "invalid_token_id"),
    "logprobs over 20": (text(logprobs=100), 400, "logprobs", "invalid_value"),
    "logprobs true for text": (text(logprobs=True), 400, "logprobs", "invalid_type"),
    "logprobs a number in chat": (chat(logprobs=3), 400, "logprobs", "invalid_type"),
    "top_logprobs over 20": (chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value"),
    "top_logprobs without logprobs": (chat(top_logprobs=2), 400, "top_logprobs", "invalid_value"),
    "prompt_logprobs streamed": (text(prompt_logprobs=1, stream=True), 400, "prompt_logprobs", "unsupported_parameter"),
    "stream a string": (chat(stream="yes"), 400, "stream", "invalid_type"),
    "stream_options without stream": (chat(stream_options={"include_usage": True}), 400, "stream_options", "unsupported_parameter"),
    "stream_options of the wrong type": (chat(stream=True, stream_options=[]), 400, "stream_options", "invalid_type"),
    "priority beyond 32 bits": (chat(priority=2**40), 400, "priority", "invalid_value"),
    "a cache_salt with spaces": (chat(cache_salt="a b"), 400, "cache_salt", "invalid_value"),
    "reserved template variables": (
        chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs", "invalid_value",
    ),
    "a final message that ends and goes on": (
        chat(continue_final_message=True, add_generation_prompt=True), 400, "continue_final_message", "invalid_value",
    ),
    "a final message of nothing to go on with": (
        chat(messages=[{"role": "assistant", "content": ""}], continue_final_message=True), 400, "messages", "invalid_value",
    ),
    "tools": (chat(tools=[{"type": "function"}]), 400, "tools[0].function", "missing_required_parameter"),
    "an unknown response format": (chat(response_format={"type": "xml"}), 400, "response_format.type", "invalid_value"),
    "a response format of the wrong type": (chat(response_format="json"), 400, "response_format", "invalid_type"),
    "a response format without its schema": (chat(response_format={"type": "json_schema"}), 400, "response_format", "invalid_value"),
    "a schema that is none": (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objct"}}}),
        400, "response_format", "invalid_grammar",
    ),
    "a bad regex": (text(structured_outputs={"regex": "(a"}), 400, "structured_outputs", "invalid_grammar"),
    "a bad grammar": (text(structured_outputs={"grammar": "start: foo"}), 400, "structured_outputs", "invalid_grammar"),
    "an empty choice": (text(structured_outputs={"choice": []}), 400, "structured_outputs.choice", "invalid_value"),
    "two constraints": (text(structured_outputs={"choice": ["a"], "regex": "a"}), 400, "structured_outputs", "invalid_value"),
    "no constraint": (text(structured_outputs={}), 400, "structured_outputs", "invalid_value"),
    "an unknown constraint": (text(structured_outputs={"xml": "a"}), 400, "structured_outputs.xml", "invalid_value"),
    "a constraint and a format": (
        chat(structured_outputs={"regex": "a"}, response_format={"type": "json_object"}), 400, "structured_outputs", "unsupported_parameter",
    ),
    "a constraint and allowed tokens": (text(structured_outputs={"regex": "a"}, allowed_token_ids=[5]), 400, "structured_outputs", "invalid_value"),
    "an older name of a constraint": (text(guided_regex="a"), 400, "guided_regex", "unsupported_parameter"),
    "an empty bad word": (text(bad_words=[""]), 400, "bad_words[0]", "invalid_value"),
    "bad words of the wrong type": (text(bad_words="x"), 400, "bad_words", "invalid_type"),
    "best_of": (text(best_of=3), 400, "best_of", "unsupported_parameter"),
    "echo in chat": (chat(echo=True), 400, "echo", "unsupported_parameter"),
    "malformed JSON": (raw(b'{"messages": [}'), 400, None, "invalid_json"),
    "truncated JSON": (raw(b'{"messages": ['), 400, None, "invalid_json"),
    "no body": (raw(b""), 400, None, "invalid_json"),
    "an array as body": (raw(b"[1]"), 400, None, "invalid_json"),
    "invalid UTF-8": (raw(b'{"messages": "\xff"}'), 400, None, "invalid_utf8"),
    "half a surrogate pair": (raw(rb'{"prompt": "\ud800"}', TEXT), 400, None, "invalid_json"),
    "endless nesting": (raw(b"[" * 200_000), 400, None, "invalid_json"),
    "tokenize without anything": (without({}, "/tokenize"), 400, None, "invalid_value"),
    "detokenize over the vocabulary": (without({"tokens": [99999]}, "/detokenize"), 400, "tokens", "invalid_value"),
    "an unknown path": (without({}, "/v1/nothing"), 404, None, "not_found"),
    "profiling that was not set up": (without({}, "/start_profile"), 409, None, "profiler_not_ready"),
}  # fmt: skip


def assert_is_an_openai_error(answer, status, param, code):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code), error
    assert error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_and_the_server_goes_on(server, name):
    (path, body), status, param, code = BAD[name]
    answer = httpx.post(server.url + path, content=body, timeout=30)
    error = assert_is_an_openai_error(answer, status, param, code)
    assert error["type"] == "invalid_request_error"
    assert server.post(TEXT, prompt="hello", max_tokens=1).status_code == 200


def test_a_context_error_tells_the_true_counts(server):
    error = server.post(TEXT, prompt=[5] * 600).json()["error"]
    assert "600" in error["message"]
    assert str(CONTEXT) in error["message"]


def test_malformed_json_is_told_with_its_byte_offset(server):
    body = '{"prompt": "é", x}'.encode()
    error = httpx.post(server.url + TEXT, content=body).json()["error"]
    assert f"at byte {body.index(b'x')}" in error["message"]
    error = httpx.post(server.url + TEXT, content=b'{"top_p": NaN}').json()["error"]
    assert "NaN" in error["message"]
    assert "at byte" in error["message"]


def test_a_wrong_method_is_told_which_one_works(server):
    answer = httpx.get(server.url + CHAT)
    error = assert_is_an_openai_error(answer, 405, None, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert "POST" in error["message"]


def test_a_body_that_says_it_is_too_large_is_refused_unread(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.settimeout(10)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_that_turns_out_too_large_is_refused_while_it_comes(server):
    def endless():
        for _ in range(40):
            yield b"x" * 2**20

    answer = httpx.post(server.url + TEXT, content=endless(), timeout=30)
    assert_is_an_openai_error(answer, 413, None, "request_too_large")
    assert server.post(TEXT, prompt="hello", max_tokens=1).status_code == 200


def test_an_empty_prompt_is_refused_where_the_tokenizer_adds_nothing(server):
    if server.post("/tokenize", prompt="").json()["count"]:
        answer = server.post(TEXT, prompt="", max_tokens=1)
        assert answer.status_code == 200
    else:
        assert_is_an_openai_error(server.post(TEXT, prompt="", max_tokens=1), 400, "prompt", "empty_prompt")


def test_nothing_of_all_this_is_left_running(server):
    server.wait_until_idle()
