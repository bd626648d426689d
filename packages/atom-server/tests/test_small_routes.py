"""Models, health, version, tokens, the OpenAPI document, request ids and the log line."""

from __future__ import annotations

import logging

import httpx
import pytest

from atom_server import ServerOptions
from atom_server.errors import APIError
from atom_server.routes import ROUTERS
from atom_server.startup import make_state


def get(server, path, **options):
    return httpx.get(server.url + path, timeout=30, **options)


def test_routes_that_generate_text_are_tried_before_all_others():
    first = [route.path for router in ROUTERS[:4] for route in router.routes]
    assert first[:2] == ["/v1/completions", "/v1/chat/completions"]
    assert {"/v1/responses", "/v1/messages"} <= set(first)


def test_health_is_exactly_ok(server):
    answer = get(server, "/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok"}


def test_ready_says_the_same_while_nothing_is_going_down(server):
    assert get(server, "/ready").json() == {"status": "ok"}


def test_models_are_listed_and_found_by_id(server, client):
    assert [model.id for model in client.models.list()] == ["tiny", "tiny-alias"]
    model = client.models.retrieve("tiny")
    assert model.object == "model"
    assert model.max_model_len == server.engine.info.max_model_len


def test_the_folder_of_a_model_is_not_shown(server, tiny_llama):
    state = make_state(server.engine, ServerOptions())
    assert (state.served_names, state.model_root) == ((tiny_llama.name,), tiny_llama.name)
    assert state.check_model(str(tiny_llama)) == str(tiny_llama), "who was told the folder may go on with it"
    assert str(tiny_llama.parent) not in get(server, "/v1/models").text
    named = make_state(server.engine, ServerOptions(served_model_name="mine"))
    with pytest.raises(APIError, match="served: mine"):
        named.check_model(str(tiny_llama))


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/version", "/v1/models", "/v1/models/tiny", "/metrics", "/docs"]
)
def test_head_has_what_get_has_but_the_body(server, path):
    whole, head = get(server, path), httpx.head(server.url + path, timeout=30)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert httpx.head(server.url + "/v1/completions").status_code == 405
    assert httpx.head(server.url + "/v1/models/other").status_code == 404


def test_a_model_that_is_not_served_is_not_found(server):
    answer = get(server, "/v1/models/some/other")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_nothing_is_counted_for_a_model_that_is_not_served(server, path, fields):
    answer = server.post(path, model="some/other", **fields)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_the_server_tells_its_settings_but_no_secrets(make_front):
    with make_front(ServerOptions(api_key="hidden-key", served_model_name="a,b")) as server:
        answer = get(server, "/server_info", headers={"authorization": "Bearer hidden-key"})
        info = answer.json()
    assert "hidden-key" not in answer.text
    assert info["served_model_names"] == ["a", "b"]
    assert info["engine"]["max_num_seqs"] == server.engine.info.max_num_seqs
    assert info["server"]["asks_for_api_key"] is True


def test_load_counts_requests_and_cache(server):
    server.wait_until_idle()
    idle = get(server, "/load").json()
    assert idle.pop("max_num_queued_requests") == 4 * server.engine.info.max_num_seqs
    assert idle.pop("max_num_queued_tokens") >= 2**21
    assert idle == {"server_load": 0, "num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage": 0.0}
    request = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=request, timeout=30) as answer:
        lines = answer.iter_lines()
        for _ in range(3):
            next(lines)
        busy = get(server, "/load").json()
    assert busy["server_load"] == busy["num_requests_running"] == 1
    assert 0 < busy["kv_cache_usage"] < 1


def test_version(server):
    assert get(server, "/version").json()["version"].count(".") == 2


def test_tokens_survive_the_way_there_and_back(server):
    text = "Hello wörld, 你好 🙂!"
    answer = server.post("/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}


def test_a_conversation_is_tokenized_through_the_template(server):
    messages = [{"role": "user", "content": "hi"}]
    tokens = server.post("/tokenize", messages=messages).json()["tokens"]
    text = server.post("/detokenize", tokens=tokens).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def body_schema(document, path):
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "$ref" not in str(schema)
    return schema["properties"]


def test_the_openapi_document_describes_the_request_bodies(server):
    document = get(server, "/openapi.json").json()
    fields = body_schema(document, "/v1/chat/completions")
    assert fields["temperature"]["anyOf"] == [{"type": "number", "minimum": 0, "maximum": 100}, {"type": "null"}]
    assert fields["messages"]["type"] == "array"
    assert len(body_schema(document, "/v1/completions")["prompt"]["anyOf"]) == 3
    constraint = fields["structured_outputs"]["anyOf"][0]
    assert (constraint["minProperties"], constraint["maxProperties"]) == (1, 1)
    assert constraint["description"] == "Exactly one constraint on the text."
    assert "/health" in document["paths"]


def test_the_openapi_document_tells_the_limits_of_the_engine(server):
    document = get(server, "/openapi.json").json()
    info = server.engine.info
    fields = body_schema(document, "/v1/completions")
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == info.max_model_len - 1
    assert fields["n"]["anyOf"][0]["maximum"] == info.max_num_seqs
    assert fields["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == info.vocab_size - 1
    assert body_schema(document, "/detokenize")["tokens"]["items"]["maximum"] == info.vocab_size - 1


def test_the_openapi_document_has_the_errors_that_are_sent_and_no_others(server):
    document = get(server, "/openapi.json").json()
    for path in document["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]
            error = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert set(error["properties"]["error"]["required"]) == {"message", "type", "param", "code"}


def test_request_ids_are_given_back_or_made_up(server):
    assert get(server, "/version", headers={"x-request-id": "my-id_1.2"}).headers["x-request-id"] == "my-id_1.2"
    assert get(server, "/version", headers={"x-request-id": "../bad id"}).headers["x-request-id"] != "../bad id"
    assert len(get(server, "/version").headers["x-request-id"]) == 32


def test_a_request_leaves_one_log_line_without_its_text(server, caplog):
    with caplog.at_level(logging.INFO, logger="atom_server"):
        answer = httpx.post(
            server.url + "/v1/completions",
            json={"prompt": "secret words", "max_tokens": 3, "ignore_eos": True},
            headers={"x-request-id": "logged-1"},
        )
        assert answer.status_code == 200
        server.wait_until_idle()
        get(server, "/health")
    lines = [record.getMessage() for record in caplog.records if record.name == "atom_server.request"]
    assert not any("/health" in line for line in lines)
    [line] = [line for line in lines if "logged-1" in line]
    assert "logged-1 POST /v1/completions 200" in line
    for part in ("prompt=", "cached=", "output=3", "ttft=", "tpot=", "finish=length"):
        assert part in line
    assert "secret" not in line
