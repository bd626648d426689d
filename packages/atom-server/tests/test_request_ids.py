"""A client's `request_id` is a label: requests that share one have nothing to do with each other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx

PATH = "/v1/completions"


def body(prompt, **fields):
    return {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "request_id": "mine"} | fields


def text_of(server, prompt, **fields):
    answer = server.post(PATH, **body(prompt, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == "cmpl-mine"
    return answer.json()["choices"][0]["text"]


def read_a_little(server, prompt):
    """Begin a long stream, and leave it after its first event."""
    with httpx.stream("POST", server.url + PATH, json=body(prompt, max_tokens=400, stream=True), timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                assert json.loads(line[6:])["id"] == "cmpl-mine"
                return


def test_requests_at_once_with_one_id_get_what_each_gets_alone(server):
    prompts = [f"client {place} wants other words" for place in range(12)]
    alone = [text_of(server, prompt) for prompt in prompts]
    with ThreadPoolExecutor(12) as clients:
        assert list(clients.map(lambda prompt: text_of(server, prompt), prompts)) == alone
    server.wait_until_idle()


def test_the_id_of_a_client_that_left_can_be_used_again_at_once(server):
    alone = text_of(server, "the second one")
    for _ in range(5):
        read_a_little(server, "the first one, which leaves")
        assert text_of(server, "the second one") == alone
    server.wait_until_idle()


def test_the_id_of_a_request_that_a_stop_string_ended_can_be_used_again_at_once(server):
    whole = text_of(server, "the first one")
    alone = text_of(server, "the second one")
    for _ in range(5):
        assert whole.startswith(text_of(server, "the first one", stop=[whole[3:6]], max_tokens=400))
        assert text_of(server, "the second one") == alone
    server.wait_until_idle()


def test_leaving_one_request_does_not_end_another_of_the_same_id(server):
    prompt = "the one that stays"
    alone = text_of(server, prompt, max_tokens=300)
    with ThreadPoolExecutor(1) as clients:
        staying = clients.submit(text_of, server, prompt, max_tokens=300)
        for _ in range(4):
            read_a_little(server, "one that leaves")
        assert staying.result(60) == alone
    server.wait_until_idle()
