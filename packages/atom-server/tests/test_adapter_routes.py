"""Adapters over HTTP: a request's model names one, and the administrator loads and unloads them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.config import ConfigError
from atom_server import ServerOptions
from atom_server.errors import APIError
from atom_server.startup import make_state
from running_server import Front, RunningServer
from tiny_adapters import make_adapter, merge

PROMPT = "Once upon a time"
GREEDY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
SETTINGS = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 64}


@pytest.fixture(scope="module")
def folders(tiny_llama, tmp_path_factory):
    """Where the adapters lie."""
    place = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(place / name, tiny_llama, seed=seed) for seed, name in enumerate(("sql", "chat"), 1)}


@pytest.fixture(scope="module")
def texts(tiny_llama, folders, tmp_path_factory):
    """What models with merged weights write, by the name of the adapter; "tiny" is the model itself."""
    place, found = tmp_path_factory.mktemp("merged"), {}
    merged = {name: merge(place / name, tiny_llama, folder) for name, folder in folders.items()}
    for name, model in {"tiny": tiny_llama, **merged}.items():
        with LLMEngine(str(model), **SETTINGS) as engine:
            params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
            found[name] = engine.generate(PROMPT, params, use_tqdm=False)[0]["text"]
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def adapted(tiny_llama, folders):
    """A server with both adapters, and room for one more."""
    modules = {name: str(folder) for name, folder in folders.items()}
    with RunningServer(tiny_llama, lora_modules=modules, max_loras=3) as running:
        yield running


def text_of(server, **fields):
    answer = server.post("/v1/completions", **{**GREEDY, **fields}).json()
    assert answer["model"] == fields.get("model", "tiny")
    return answer["choices"][0]["text"]


def load(server, name, folder):
    return server.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(folder))


def unload(server, name):
    return server.post("/v1/unload_lora_adapter", lora_name=name)


def error_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


def test_the_model_of_a_request_chooses_its_adapter(adapted, texts):
    with ThreadPoolExecutor(6) as threads:
        models = [*texts, *texts]
        found = list(threads.map(lambda model: text_of(adapted, model=model), models))
    assert found == [texts[model] for model in models]
    assert text_of(adapted) == texts["tiny"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_chats_name_an_adapter_too(adapted, path):
    fields = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0.0}
    answers = [adapted.post(path, model=model, **fields).json() for model in ("tiny", "sql")]
    assert [answer["model"] for answer in answers] == ["tiny", "sql"]
    assert str(answers[0].get("choices") or answers[0]["content"]) != str(
        answers[1].get("choices") or answers[1]["content"]
    )


def test_embeddings_are_made_by_the_adapter(adapted):
    vectors = [
        adapted.post("/v1/embeddings", model=model, input="hello").json()["data"][0]["embedding"]
        for model in ("tiny", "sql", "sql")
    ]
    assert vectors[1] == vectors[2]
    assert vectors[0] != vectors[1]


def test_adapters_are_listed_behind_the_model_with_it_as_their_parent(adapted, folders):
    models = httpx.get(adapted.url + "/v1/models").json()["data"]
    parents = {model["id"]: model["parent"] for model in models}
    assert parents == {"tiny": None, "tiny-alias": None, "sql": "tiny", "chat": "tiny"}
    assert httpx.get(adapted.url + "/v1/models/sql").json()["parent"] == "tiny"
    assert str(folders["sql"]) not in str(models)


def test_an_adapter_comes_and_goes_while_the_server_runs(adapted, folders, texts):
    assert error_of(adapted.post("/v1/completions", model="late", **GREEDY)) == (404, "model_not_found")
    assert load(adapted, "late", folders["chat"]).json() == {"status": "ok"}
    assert text_of(adapted, model="late") == texts["chat"]
    assert unload(adapted, "late").json() == {"status": "ok"}
    assert error_of(adapted.post("/v1/completions", model="late", **GREEDY)) == (404, "model_not_found")
    load(adapted, "late", folders["sql"])
    assert text_of(adapted, model="late") == texts["sql"]
    unload(adapted, "late")


def test_a_request_goes_on_while_its_adapter_is_unloaded(adapted, folders):
    long = {**GREEDY, "max_tokens": 150}
    load(adapted, "going", folders["chat"])
    expected = text_of(adapted, model="chat", **{**long, "cache_salt": "other"})
    with httpx.stream("POST", adapted.url + "/v1/completions", json={**long, "model": "going", "stream": True}) as it:
        lines = it.iter_lines()
        next(lines)
        assert unload(adapted, "going").status_code == 200
        rest = [line for line in lines if line.startswith("data: {")]
    assert len(rest) > 50
    adapted.wait_until_idle()
    assert load(adapted, "going", folders["chat"]).status_code == 200
    assert text_of(adapted, model="going", **long) == expected
    unload(adapted, "going")


def test_what_cannot_be_loaded_is_refused_and_the_server_goes_on(adapted, folders, tiny_llama2, tmp_path, texts):
    other = make_adapter(tmp_path / "other", tiny_llama2)
    refused = {
        "other": (other, "has the shape"),
        "absent": (tmp_path / "absent", "is no folder"),
        "sql": (folders["sql"], "is loaded already"),
        "tiny": (folders["sql"], "the model is served as 'tiny'"),
        "a b": (folders["sql"], "lora_name is 'a b'"),
    }
    for name, (folder, reason) in refused.items():
        answer = load(adapted, name, folder)
        assert answer.status_code == 400
        assert reason in answer.json()["error"]["message"]
    assert error_of(unload(adapted, "absent")) == (404, "model_not_found")
    assert text_of(adapted, model="sql") == texts["sql"]


def test_no_more_than_max_loras_are_loaded(adapted, folders):
    load(adapted, "third", folders["sql"])
    answer = load(adapted, "fourth", folders["sql"])
    assert error_of(answer) == (400, "invalid_adapter")
    assert "as many as max_loras allows" in answer.json()["error"]["message"]
    unload(adapted, "third")


def test_only_the_administrator_loads_and_unloads(adapted, folders):
    with Front(adapted, ServerOptions(api_key="user", admin_key="root")) as front:
        bodies = {"load": {"lora_name": "x", "lora_path": str(folders["sql"])}, "unload": {"lora_name": "x"}}
        for key, statuses in (("user", [403, 403]), ("root", [200, 200])):
            found = [
                httpx.post(
                    f"{front.url}/v1/{verb}_lora_adapter", json=body, headers={"authorization": f"Bearer {key}"}
                ).status_code
                for verb, body in bodies.items()
            ]
            assert found == statuses


def test_a_server_without_adapters_says_how_to_have_them(server, folders):
    answer = load(server, "sql", folders["sql"])
    assert error_of(answer) == (400, "invalid_adapter")
    assert "start it with enable_lora or lora_modules" in answer.json()["error"]["message"]


def test_an_adapter_may_not_have_the_name_of_the_model(adapted):
    with pytest.raises(ConfigError, match="lora_modules has the name sql, by which the model is served"):
        make_state(adapted.engine, ServerOptions(served_model_name="base,sql"))


def test_the_names_of_adapters_are_told_to_who_asks_for_another(adapted):
    with pytest.raises(APIError, match="served: tiny, tiny-alias, sql, chat"):
        adapted.state.check_model("nobody")


@pytest.mark.slow
def test_an_engine_that_is_started_anew_has_the_adapters(tiny_llama, folders, texts):
    modules = {name: str(folder) for name, folder in folders.items()}
    with RunningServer(tiny_llama, lora_modules=modules, data_parallel_size=2) as running:
        load(running, "late", folders["sql"])
        unload(running, "sql")
        for rank in (0, 1):
            os.kill(running.engine.engines[rank].pid, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while [one.num_restarts for one in running.engine.engines][rank] == 0 or running.engine.is_recovering:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert [text_of(running, model=name) for name in ("late", "chat")] == [texts["sql"], texts["chat"]]
