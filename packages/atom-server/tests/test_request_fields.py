"""Every field of a request for text does what it says, in chats and in completions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import httpx
import pytest

from atom_server import ServerOptions
from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.completions import CompletionRequest

PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
SAID = "Tell me a story of the sun and the moon."
HEADER = "x-atom-ignored-fields"


class Reply(NamedTuple):
    """A choice, whichever endpoint it came from."""

    text: str
    token_ids: list[int]
    prompt_ids: list[int]
    finish_reason: str
    stop_reason: Any
    choice: dict[str, Any]
    answer: dict[str, Any]
    headers: Any


Ask = Callable[..., Reply]


def ask(server, kind, **fields) -> Reply:
    said = {"messages": [{"role": "user", "content": SAID}]} if kind == "chat" else {"prompt": SAID}
    plain = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    response = server.post(PATHS[kind], **(said | plain | fields))
    assert response.status_code == 200, response.text
    answer = response.json()
    choice = answer["choices"][0]
    text = choice["message"]["content"] if kind == "chat" else choice["text"]
    prompt_ids = (answer if kind == "chat" else choice).get("prompt_token_ids")
    ends = (choice["finish_reason"], choice["stop_reason"])
    return Reply(text, choice.get("token_ids"), prompt_ids, *ends, choice, answer, response.headers)


def temperature(ask: Ask):
    assert ask().token_ids == ask().token_ids != ask(temperature=2, seed=1).token_ids


def greedy_by(**fields):
    """A temperature, and a filter that leaves the likeliest token alone."""

    def filtered(ask: Ask):
        assert ask(temperature=2, seed=1, **fields).token_ids == ask().token_ids

    return filtered


def seed(ask: Ask):
    first, again, other = (ask(temperature=1, seed=seed).token_ids for seed in (5, 5, 6))
    assert first == again != other


def n(ask: Ask):
    choices = ask(n=3, temperature=1.5, seed=1).answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3


def max_tokens(ask: Ask):
    reply = ask(max_tokens=3)
    assert (len(reply.token_ids), reply.finish_reason) == (3, "length")


def min_tokens(ask: Ask):
    first = ask().token_ids[0]
    assert ask(stop_token_ids=[first]).token_ids == [first]
    ids = ask(stop_token_ids=[first], min_tokens=3).token_ids
    assert len(ids) >= 3
    assert first not in ids[:2]


def stop(ask: Ask):
    whole = ask(max_tokens=24).text
    end = whole[4:6]
    for given in (end, [end]):
        reply = ask(max_tokens=24, stop=given)
        assert (reply.text, reply.finish_reason, reply.stop_reason) == (whole[: whole.index(end)], "stop", end)


def include_stop_str_in_output(ask: Ask):
    whole = ask(max_tokens=24).text
    end = whole[4:6]
    kept = ask(max_tokens=24, stop=end, include_stop_str_in_output=True).text
    assert kept == whole[: whole.index(end) + len(end)]


def stop_token_ids(ask: Ask):
    third = ask().token_ids[2]
    reply = ask(stop_token_ids=[third])
    assert (reply.token_ids[-1], reply.finish_reason, reply.stop_reason) == (third, "stop", third)


def ignore_eos(ask: Ask, eos: int):
    bias = {str(eos): 100}
    ended, ignored = (ask(logit_bias=bias, ignore_eos=ignores) for ignores in (False, True))
    assert (len(ended.token_ids), ended.finish_reason) == (1, "stop")
    assert (len(ignored.token_ids), ignored.finish_reason) == (8, "length")


def skip_special_tokens(ask: Ask, eos: int):
    shown, skipped = (ask(logit_bias={str(eos): 100}, skip_special_tokens=skips).text for skips in (False, True))
    assert skipped == ""
    assert shown == shown[: len(shown) // 8] * 8 != ""


def presence_penalty(ask: Ask):
    ids = ask(max_tokens=24, presence_penalty=2).token_ids
    assert ids != ask(max_tokens=24).token_ids
    assert len(set(ids)) > len(set(ask(max_tokens=24, presence_penalty=-2).token_ids))


def frequency_penalty(ask: Ask):
    ids = ask(max_tokens=24, frequency_penalty=2).token_ids
    assert len(set(ids)) > len(set(ask(max_tokens=24, frequency_penalty=-2).token_ids))


def repetition_penalty(ask: Ask):
    repeated, avoided = (ask(max_tokens=24, repetition_penalty=penalty).token_ids for penalty in (0.1, 10.0))
    assert len(set(repeated)) < len(set(avoided))


def logit_bias(ask: Ask):
    assert ask(logit_bias={"17": 100}).token_ids == [17] * 8


def allowed_token_ids(ask: Ask):
    assert set(ask(allowed_token_ids=[20, 21, 22], temperature=1).token_ids) <= {20, 21, 22}


def bad_words(ask: Ask):
    word = ask(max_tokens=1).text
    assert word not in ask(bad_words=[word], max_tokens=1).text


def structured_outputs(ask: Ask):
    reply = ask(structured_outputs={"choice": ["heron", "crane"]}, max_tokens=32, ignore_eos=False)
    assert reply.text in ("heron", "crane")


def response_format(ask: Ask):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}}}
    assert isinstance(json.loads(ask(response_format=form, max_tokens=64).text)["a"], bool)


def prompt_logprobs(ask: Ask):
    reply = ask(prompt_logprobs=1)
    rows = reply.choice["prompt_logprobs"]
    assert len(rows) == len(reply.prompt_ids)
    assert rows[0] is None
    assert all(str(token) in row for token, row in zip(reply.prompt_ids[1:], rows[1:], strict=True))


def return_token_ids(ask: Ask):
    reply = ask(return_token_ids=True)
    usage = reply.answer["usage"]
    assert (len(reply.prompt_ids), len(reply.token_ids)) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert ask(return_token_ids=False).token_ids is None


def truncate_prompt_tokens(ask: Ask):
    whole = ask().prompt_ids
    assert ask(truncate_prompt_tokens=5).prompt_ids == whole[-5:]
    assert ask(truncate_prompt_tokens=500).prompt_ids == whole
    assert len(ask(truncate_prompt_tokens=-1, max_tokens=512 - 7).prompt_ids) == 7


def truncation_side(ask: Ask):
    assert ask(truncate_prompt_tokens=5, truncation_side="right").prompt_ids == ask().prompt_ids[:5]


def cache_salt(ask: Ask):
    prompt = {"truncate_prompt_tokens": 40}

    def cached(salt):
        return ask(cache_salt=salt, **prompt).answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    fresh = f"salt-{time.monotonic_ns()}"
    assert cached(fresh) == 0
    assert cached(fresh) > 0
    assert cached(f"other-{fresh}") == 0


def request_id(ask: Ask):
    assert ask(request_id="my-request.1").answer["id"].endswith("-my-request.1")


def model(ask: Ask):
    assert ask(model="tiny-alias").answer["model"] == "tiny-alias"


def changes_nothing(**fields):
    """Known fields that have no effect on the answer, and are not told as ignored."""

    def same(ask: Ask):
        reply = ask(**fields)
        assert reply.token_ids == ask().token_ids
        assert HEADER not in reply.headers

    return same


EFFECTS: dict[str, Callable[..., None]] = {
    "temperature": temperature,
    "top_p": greedy_by(top_p=1e-6),
    "top_k": greedy_by(top_k=1),
    "min_p": greedy_by(min_p=1.0),
    "user": changes_nothing(user="me"),
    "metadata": changes_nothing(metadata={"trace": "1"}),
    "store": changes_nothing(store=True),
    **{
        effect.__name__: effect
        for effect in (
            *(seed, n, max_tokens, min_tokens, stop, include_stop_str_in_output, stop_token_ids, ignore_eos),
            *(skip_special_tokens, presence_penalty, frequency_penalty, repetition_penalty, logit_bias),
            *(allowed_token_ids, bad_words, structured_outputs, response_format, prompt_logprobs, return_token_ids),
            *(truncate_prompt_tokens, truncation_side, cache_salt, request_id, model),
        )
    },
}
# Fields with a test of their own below, or in the file of their endpoint.
TOLD_ELSEWHERE = {
    *("priority", "add_special_tokens", "stream", "stream_options", "return_tokens_as_token_ids", "echo", "logprobs"),
    *("prompt", "messages", "top_logprobs", "max_completion_tokens", "add_generation_prompt", "continue_final_message"),
    *("chat_template_kwargs", "documents", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"),
    *("include_reasoning", "thinking_token_budget", "logprob_token_ids", "kv_transfer_params"),
}


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("field", EFFECTS)
def test_a_field_does_what_it_says(server, kind, field):
    effect = EFFECTS[field]
    more = {"eos": server.engine.info.eos_token_ids[0]} if "eos" in effect.__code__.co_varnames else {}
    effect(partial(ask, server, kind), **more)


def test_every_field_has_its_test():
    fields = {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields}
    assert fields - TOLD_ELSEWHERE == set(EFFECTS)


@pytest.mark.parametrize("kind", PATHS)
def test_special_tokens_are_added_as_asked(server, kind):
    for special in (True, False):
        ids = ask(server, kind, add_special_tokens=special).prompt_ids
        text = server.post("/detokenize", tokens=ask(server, kind, add_special_tokens=False).prompt_ids).json()[
            "prompt"
        ]
        assert ids == server.post("/tokenize", prompt=text, add_special_tokens=special).json()["tokens"]


@pytest.mark.parametrize("kind", PATHS)
def test_tokens_of_logprobs_can_be_told_by_their_ids(server, kind):
    wanted = {"logprobs": True, "top_logprobs": 2} if kind == "chat" else {"logprobs": 2}
    reply = ask(server, kind, return_tokens_as_token_ids=True, **wanted)
    logprobs = reply.choice["logprobs"]
    tokens = [entry["token"] for entry in logprobs["content"]] if kind == "chat" else logprobs["tokens"]
    assert tokens == [f"token_id:{token_id}" for token_id in reply.token_ids]


@pytest.mark.parametrize("kind", PATHS)
def test_logprobs_of_chosen_tokens_are_told(server, kind):
    wanted = {"logprobs": True} if kind == "chat" else {"logprobs": 0}
    fields = {"logprob_token_ids": [30, 20], "return_tokens_as_token_ids": True, "max_tokens": 2}
    logprobs = ask(server, kind, **wanted, **fields).choice["logprobs"]
    if kind == "chat":
        told = [[top["token"] for top in entry["top_logprobs"]] for entry in logprobs["content"]]
    else:
        told = [list(top)[:2] for top in logprobs["top_logprobs"]]
    assert told == [["token_id:30", "token_id:20"]] * 2


@pytest.mark.parametrize("kind", PATHS)
def test_a_stream_tells_the_token_ids_too(server, kind):
    whole = ask(server, kind)
    said = {"messages": [{"role": "user", "content": SAID}]} if kind == "chat" else {"prompt": SAID}
    fields = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True, "stream": True}
    lines = httpx.post(server.url + PATHS[kind], json=said | fields).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == whole.token_ids
    first = chunks[0] if kind == "chat" else choices[0]
    assert first["prompt_token_ids"] == whole.prompt_ids


def test_a_chat_echoes_the_message_that_it_continues(server):
    messages = [{"role": "user", "content": SAID}, {"role": "assistant", "content": "Once upon"}]
    plain = ask(server, "chat", messages=messages, continue_final_message=True)
    echoed = ask(server, "chat", messages=messages, continue_final_message=True, echo=True)
    assert echoed.text == "Once upon" + plain.text


def test_templates_get_documents_and_variables(make_front, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{{ mood }}{% for document in documents %}|{{ document.text }}{% endfor %}{{ messages[0].content }}"
    )
    options = ServerOptions(chat_template=str(template))
    with make_front(options) as server:
        fields = {"documents": [{"text": "one"}, {"text": "two"}], "chat_template_kwargs": {"mood": "merry"}}
        ids = ask(server, "chat", **fields).prompt_ids
        assert server.post("/detokenize", tokens=ids).json()["prompt"] == "merry|one|two" + SAID


def test_what_has_priority_goes_first_and_what_finds_the_queue_full_is_sent_away(make_server):
    with make_server(max_num_seqs=1, max_num_queued_requests=2) as server, ThreadPoolExecutor(3) as clients:
        done: list[str] = []

        def run(name, **fields):
            reply = ask(server, "text", **fields)
            done.append(name)
            return reply.token_ids

        def start(name, **fields):
            before = set(server.state.active)
            future = clients.submit(run, name, **fields)
            # Those before may end meanwhile, and on a slow machine this one may, too.
            while not (set(server.state.active) - before or future.done()):
                time.sleep(0.002)
            return future

        running = start("running", max_tokens=450)
        patient = start("patient", priority=5, max_tokens=60)
        urgent = start("urgent", priority=-5, max_tokens=60)
        refused = server.post("/v1/completions", prompt="one too many", max_tokens=1)
        assert [len(future.result(30)) for future in (running, patient, urgent)] == [450, 60, 60]
        # Only these two count: the first reply is long, and its client may still be reading when the next one comes.
        assert done.index("urgent") < done.index("patient")

        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("service_unavailable", "queue_full")
        several = server.post("/v1/completions", prompt=["many"] * 3, max_tokens=1)
        assert len(several.json()["choices"]) == 3
        too_many = server.post("/v1/completions", prompt=["many"] * 4, max_tokens=1)
        assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "prompt")
