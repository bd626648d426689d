"""Pictures over HTTP, on a tiny model that sees: the three APIs, counts of tokens, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import httpx
import jsonschema
import numpy as np
import pytest
from PIL import Image

from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from atom_server import ServerOptions
from atom_server.cli.terminal.engine_chats import chats_of
from atom_server.errors import APIError
from fuzzed_requests import RequestFuzzer
from fuzzing_clients import FuzzingClients
from pictures import file_of, head_of_png, two_colors, url_of
from running_server import Front
from tiny_seeing import make_tiny_seeing

TEXT = "what is it?"
PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what is it?<|im_end|>\n<|im_start|>assistant\n"
NOISE = Image.effect_noise((40, 30), 90).convert("RGB")
URL, OTHER = url_of(file_of(NOISE)), url_of(file_of(two_colors(24, 24)))
# 40 x 30 pixels are brought to 40 x 32: 5 x 4 tokens of 8 x 8 pixels.
NUM_TOKENS = 20
GREEDY = {"temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"color": {"type": "string", "maxLength": 6}, "size": {"enum": ["small", "large"]}},
    "required": ["color", "size"],
    "additionalProperties": False,
}


def shown(*urls, text=TEXT, role="user"):
    """One message with pictures."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": role, "content": [*parts, {"type": "text", "text": text}]}]


def source(url):
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": media_type, "data": data}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_seeing(tmp_path_factory.mktemp("seeing") / "tiny")


@pytest.fixture(scope="module")
def seeing(make_server, folder):
    with make_server(ServerOptions(served_model_name="tiny"), model=folder) as running:
        yield running


@pytest.fixture(scope="module")
def answers(folder):
    """``answers(**params)``: what an engine without a server gives for the picture, and for another one."""
    engine = LLMEngine(str(folder), dtype="float32", num_threads=1, num_kv_blocks=64)
    prompts = [{"prompt": PROMPT, "images": [picture]} for picture in (NOISE, two_colors(24, 24))]
    yield lambda **params: engine.generate(prompts, SamplingParams(temperature=0.0, **params), use_tqdm=False)
    engine.close()


@pytest.fixture(scope="module")
def expected(answers):
    """The tokens of both answers."""
    return [answer["token_ids"] for answer in answers(max_tokens=8)]


def chat(server, messages, **fields):
    return server.post("/v1/chat/completions", messages=messages, **({"max_tokens": 8} | GREEDY | fields))


def test_the_three_apis_answer_as_an_engine_without_a_server(seeing, expected):
    assert expected[0] != expected[1]
    for url, tokens in zip((URL, OTHER), expected, strict=True):
        [choice] = chat(seeing, shown(url), return_token_ids=True).json()["choices"]
        assert choice["token_ids"] == tokens
        text = choice["message"]["content"]
        content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": TEXT}]
        message = {"role": "user", "content": content}
        answer = seeing.post("/v1/responses", input=[message], max_output_tokens=8, **GREEDY)
        assert answer.json()["output"][0]["content"][0]["text"] == text
        blocks = [{"type": "image", "source": source(url)}, {"type": "text", "text": TEXT}]
        answer = seeing.post("/v1/messages", messages=[{"role": "user", "content": blocks}], max_tokens=8, **GREEDY)
        assert answer.json()["content"][0]["text"] == text


def test_an_official_client_streams_what_is_said_of_a_picture(seeing):
    with seeing.client() as client:
        chunks = client.chat.completions.create(
            model="tiny", messages=shown(URL), max_tokens=8, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat(seeing, shown(URL)).json()["choices"][0]["message"]["content"]


def test_an_answer_about_a_picture_follows_its_schema_as_one_of_an_engine_without_a_server(seeing, answers):
    alone = [
        answer["text"] for answer in answers(max_tokens=100, structured_outputs=StructuredOutputParams(json=SCHEMA))
    ]
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    asked = [chat(seeing, shown(url), response_format=form, max_tokens=100).json() for url in (URL, OTHER)]
    assert [answer["choices"][0]["message"]["content"] for answer in asked] == alone
    for text in alone:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert alone[0] != alone[1]


def test_a_tool_that_has_to_be_called_is_called_by_what_the_picture_shows(seeing):
    function = {"name": "paint", "parameters": SCHEMA}
    fields = {"tools": [{"type": "function", "function": function}], "parallel_tool_calls": False, "max_tokens": 100}
    choice = {"type": "function", "function": {"name": "paint"}}
    said = []
    for url in (URL, OTHER, URL):
        [answer] = chat(seeing, shown(url), tool_choice=choice, **fields).json()["choices"]
        assert answer["finish_reason"] == "tool_calls"
        [call] = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "paint"
        said.append(json.loads(call["function"]["arguments"]))
        jsonschema.validate(said[-1], SCHEMA)
    assert said[0] == said[2] != said[1]
    tool = {"name": "paint", "input_schema": SCHEMA}
    blocks = [{"type": "image", "source": source(URL)}, {"type": "text", "text": TEXT}]
    used = {"tools": [tool], "tool_choice": {"type": "tool", "name": "paint"}, "max_tokens": 100, **GREEDY}
    [block] = seeing.post("/v1/messages", messages=[{"role": "user", "content": blocks}], **used).json()["content"]
    assert (block["type"], block["name"]) == ("tool_use", "paint")
    jsonschema.validate(block["input"], SCHEMA)


def test_log_probabilities_are_those_of_an_engine_without_a_server(seeing, answers):
    alone = answers(max_tokens=8, logprobs=2, prompt_logprobs=1)
    image = seeing.engine.info.images.image_token_id
    for url, answer in zip((URL, OTHER), alone, strict=True):
        asked = chat(seeing, shown(url), logprobs=True, top_logprobs=2, prompt_logprobs=1, return_token_ids=True).json()
        [choice] = asked["choices"]
        told = [
            (one["logprob"], *(top["logprob"] for top in one["top_logprobs"])) for one in choice["logprobs"]["content"]
        ]
        expected = [(one.logprob, *(top[-1] for top in one.top)) for one in answer["logprobs"]]
        assert np.array(told) == pytest.approx(np.array(expected), abs=1e-4)
        first, *rows = choice["prompt_logprobs"]
        assert first is None
        of_tokens = [row[str(token)]["logprob"] for row, token in zip(rows, asked["prompt_token_ids"][1:], strict=True)]
        assert of_tokens == pytest.approx([one.logprob for one in answer["prompt_logprobs"]], abs=1e-4)
        assert asked["prompt_token_ids"].count(image) == (NUM_TOKENS if url == URL else 9)


def test_tokens_of_pictures_are_counted_and_told(seeing):
    answer = chat(seeing, shown(URL), return_token_ids=True).json()
    spec = seeing.engine.info.images
    assert answer["prompt_token_ids"].count(spec.image_token_id) == NUM_TOKENS
    counts = [answer["usage"]["prompt_tokens"], len(answer["prompt_token_ids"])]
    tokenized = seeing.post("/tokenize", messages=shown(URL)).json()
    counts += [tokenized["count"], len(tokenized["tokens"])]
    blocks = [{"type": "image", "source": source(URL)}, {"type": "text", "text": TEXT}]
    messages = [{"role": "user", "content": blocks}]
    counts.append(seeing.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"])
    assert set(counts) == {len(tokenized["tokens"])}
    assert tokenized["tokens"] == answer["prompt_token_ids"]


def test_each_picture_stands_where_its_part_does(seeing):
    """The second picture has 3 x 3 tokens: the order of parts is that of the prompt."""
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": OTHER, "detail": "low"}},
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": URL},
    ]
    tokens = seeing.post("/tokenize", messages=[{"role": "user", "content": parts}]).json()["tokens"]
    image = seeing.engine.info.images.image_token_id
    encode = seeing.engine.tokenizer.encode
    places = [index for index, token in enumerate(tokens) if token == image]
    [a], [b] = (encode(letter, add_special_tokens=False) for letter in "ab")
    assert tokens[places[0] - 2] == a
    assert places[:9] == list(range(places[0], places[0] + 9))
    assert tokens[places[9] - 2] == b
    assert len(places) == 9 + NUM_TOKENS


def test_results_of_tools_have_pictures_where_their_api_has(seeing):
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": URL}]}
    answer = seeing.post("/v1/responses", input=[call, result], max_output_tokens=16).json()
    assert answer["usage"]["input_tokens"] > NUM_TOKENS
    items = seeing.post("/v1/responses", input="more", previous_response_id=answer["id"], max_output_tokens=16).json()
    assert items["usage"]["input_tokens"] > answer["usage"]["input_tokens"]
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source(URL)}]}
    messages = [{"role": "user", "content": "look"}, used, {"role": "user", "content": [block]}]
    assert seeing.post("/v1/messages", messages=messages, max_tokens=2).status_code == 200
    of_one = seeing.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
    assert of_one > NUM_TOKENS
    messages[-1]["content"].append({"type": "image", "source": source(URL)})  # a turn of a result and a picture alone
    of_two = seeing.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
    assert of_two > of_one + NUM_TOKENS


def test_a_stored_response_keeps_its_pictures_for_those_that_go_on_from_it(seeing):
    content = [{"type": "input_image", "image_url": URL, "detail": "high"}, {"type": "input_text", "text": TEXT}]
    first = seeing.post("/v1/responses", input=[{"role": "user", "content": content}], max_output_tokens=16).json()
    listed = httpx.get(f"{seeing.url}/v1/responses/{first['id']}/input_items").json()["data"]
    assert listed[0]["content"][0] == {"type": "input_image", "image_url": URL, "detail": "auto"}
    more = seeing.post("/v1/responses", input="and now?", previous_response_id=first["id"], max_output_tokens=16)
    assert more.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 16


def test_a_picture_that_comes_again_is_found_in_the_cache_and_another_is_not(seeing):
    long = TEXT * 4
    cached = [
        chat(seeing, shown(url, text=long)).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for url in (url_of(file_of(two_colors(48, 48))), url_of(file_of(two_colors(48, 48), "WEBP", lossless=True)))
    ]
    assert cached[1] > NUM_TOKENS
    turned = url_of(file_of(two_colors(48, 48).rotate(180)))
    assert chat(seeing, shown(turned, text=long)).json()["usage"]["prompt_tokens_details"]["cached_tokens"] < 16


def error_of(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


REFUSED = {
    "text that looks like a picture": (shown(text="<|image_pad|>"), "image tokens"),
    "one more in the text": (shown(URL, text="<|image_pad|>"), "has 2 image tokens"),
    "an address": (shown("https://example.com/a.png"), "nothing is fetched by this server"),
    "no picture": (shown("data:image/png;base64,AAAA"), "picture 1 of 1: its data is no picture"),
    "17 pictures": (shown(*[URL] * 17), "a prompt may have 16"),
    "10,000 pictures": (shown(*["x"] * 10_000), "a prompt may have 16"),
    "more than the context": (
        shown(*[url_of(file_of(Image.new("L", (64, 64))))] * 16),
        "take more tokens than the context",
    ),
    "the assistant's": (shown(URL, role="assistant"), "pictures go into messages of user or tool"),
    "the system's": (shown(URL, role="system"), "pictures go into messages of user or tool"),
    "no video": ([{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}], "a string 'url'"),
    "sound": ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "'input_audio' is not"),
    "no url": ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a string 'url'"),
}


@pytest.mark.parametrize(("messages", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named(seeing, messages, reason):
    error = error_of(chat(seeing, messages))
    assert reason in error["message"]
    assert error["param"].startswith("messages")
    assert "iVBOR" not in error["message"], "data of a picture"


def test_other_apis_name_their_own_fields(seeing):
    content = [{"type": "input_image", "image_url": "http://x/a.png"}]
    error = error_of(seeing.post("/v1/responses", input=[{"role": "user", "content": content}]))
    assert error["param"] == "input"
    error = error_of(seeing.post("/tokenize", messages=shown(URL, text="<|image_pad|>")))
    assert error["param"] == "messages"
    error = error_of(chat(seeing, shown(URL), truncate_prompt_tokens=10))
    assert error["param"] == "truncate_prompt_tokens"


def test_commands_in_the_terminal_make_the_prompts_of_the_server(seeing, server):
    def prompt_of(running):
        async def make():
            with chats_of(running.engine) as chats:
                return await chats.prompt(shown(URL))

        return asyncio.run_coroutine_threadsafe(make(), running.loop).result(30)

    assert prompt_of(seeing).token_ids == [seeing.post("/tokenize", messages=shown(URL)).json()["tokens"]]
    assert [placed.num_tokens for placed in prompt_of(seeing).images[0]] == [NUM_TOKENS]
    with pytest.raises(APIError, match="sees no pictures"):
        prompt_of(server)


def test_the_checkpoints_own_processor_serves_when_it_is_asked_for(seeing, expected):
    with Front(seeing, ServerOptions(served_model_name="tiny", image_processor="checkpoint")) as front:
        for url, tokens in zip((URL, OTHER), expected, strict=True):
            [choice] = chat(front, shown(url), return_token_ids=True).json()["choices"]
            assert choice["token_ids"] == tokens
        assert front.state.pictures.processes.num_started == 1
        bomb = chat(front, shown(url_of(head_of_png(60_000, 60_000))))
        assert "60000 x 60000 pixels; at most 64000000 are decoded" in error_of(bomb)["message"]
        assert chat(front, shown(URL)).status_code == 200


def test_a_model_without_a_tower_says_so(server):
    for messages in (shown(URL), shown("http://x")):
        assert "sees no pictures" in error_of(chat(server, messages))["message"]
    models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert models[0]["input_modalities"] == ["text"]


def test_clients_learn_that_a_model_sees(seeing):
    assert httpx.get(f"{seeing.url}/v1/models").json()["data"][0]["input_modalities"] == ["text", "image", "video"]


@pytest.mark.timing
def test_streams_of_others_go_on_while_large_pictures_are_decoded(seeing):
    large = url_of(file_of(Image.effect_noise((1800, 1800), 90).convert("RGB"), "JPEG", quality=90))
    body, statuses = json.dumps({"messages": shown(large, large), "max_tokens": 1}).encode(), []

    def send():
        url, headers = f"{seeing.url}/v1/chat/completions", {"content-type": "application/json"}
        statuses.append(httpx.post(url, content=body, headers=headers, timeout=60).status_code)

    longest = []
    for _ in range(3):  # what else the machine does holds it up now and then
        senders = [threading.Thread(target=send) for _ in range(3)]
        with seeing.longest_pause() as pauses:
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
        longest += pauses
    assert statuses == [200] * 9
    assert min(longest) < 0.1


def test_a_batch_answers_lines_with_pictures_and_no_log_has_their_data(seeing, expected, tmp_path, caplog):
    caplog.set_level("DEBUG")
    log, body = tmp_path / "requests", {"messages": shown(URL), "max_tokens": 8, "return_token_ids": True, **GREEDY}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    options = ServerOptions(batch_folder=str(tmp_path / "batches"), request_log=str(log))
    with Front(seeing, options) as front, front.client() as client:
        file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        deadline = time.monotonic() + 30
        while (batch := client.batches.retrieve(batch.id)).status not in ("completed", "failed"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        answer = json.loads(client.files.content(batch.output_file_id or "").text)
        refused = chat(front, [{"role": "user", "content": {"url": URL}}])
    assert answer["response"]["body"]["choices"][0]["token_ids"] == expected[0]
    data = source(URL)["data"][:16]
    assert data not in error_of(refused)["message"]
    assert "prompt_tokens" in log.read_text()
    assert data not in log.read_text() + caplog.text


def test_hostile_requests_end_nothing_and_change_nothing(seeing, expected):
    document = httpx.get(f"{seeing.url}/openapi.json").json()
    clients = FuzzingClients(int(seeing.url.rpartition(":")[2]), num_threads=8)
    clients.send(200, RequestFuzzer(document, 7, key="any", longest_list=64, most_tokens=20))
    assert not clients.problems, "\n".join(clients.problems[:20])
    seeing.wait_until_idle()
    assert chat(seeing, shown(URL), return_token_ids=True).json()["choices"][0]["token_ids"] == expected[0]


def test_a_client_that_leaves_while_its_pictures_are_decoded_leaves_nothing_behind(seeing):
    large = url_of(file_of(Image.effect_noise((2400, 2400), 90), "PNG"))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{seeing.url}/v1/chat/completions", json={"messages": shown(*[large] * 2)}, timeout=0.05)
    seeing.wait_until_idle()
    assert chat(seeing, shown(URL)).status_code == 200
