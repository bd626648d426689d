"""Videos over HTTP, on tiny models that see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from PIL import Image

from atom_core import LLMEngine, SamplingParams
from atom_server import ServerOptions
from atom_server.cli.terminal.engine_chats import chats_of
from atom_server.cli.terminal.shown_files import part_of_file
from atom_server.errors import APIError
from pictures import file_of, two_colors, url_of
from tiny_seeing import make_tiny_kimi, make_tiny_seeing
from videos import grey_frames, url_of_frames, video_file

FRAMES = [Image.effect_noise((40, 24), 90).convert("RGB") for _ in range(3)]
URL = url_of_frames(FRAMES)
PICTURE = two_colors(24, 24)
GREEDY = {"temperature": 0, "max_tokens": 8}
RESPONSE = {"temperature": 0, "max_output_tokens": 16}
SOURCE = {"type": "base64", "media_type": "video/jpeg", "data": URL.partition(",")[2]}


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
        picture, video: what its template writes.
        written: what a prompt has for `FRAMES`, with one token for each picture.
        num_tokens: 24 x 40 pixels are 3 x 5 tokens of 8 x 8 pixels, for each picture of some frames.
        of_four: the pictures of a video of four frames.
    """

    make: Callable[[Path], Path]
    picture: str
    video: str
    written: tuple[str, ...]
    num_tokens: int
    of_four: int


KINDS = {
    "qwen3_vl": Kind(
        make_tiny_seeing,
        "<|vision_start|><|image_pad|><|vision_end|>",
        "<|vision_start|><|video_pad|><|vision_end|>",
        ("<0.2 seconds><|vision_start|><|video_pad|>", "<1.0 seconds><|vision_start|><|video_pad|>"),
        num_tokens=30,
        of_four=2,
    ),
    "kimi_k25": Kind(
        make_tiny_kimi,
        "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
        "<|kimi_k25_video_placeholder|>",
        ("00:00:00.000<|media_begin|>video<|media_content|><|media_pad|>",),
        num_tokens=15,
        of_four=1,
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return kind.make(tmp_path_factory.mktemp("seeing") / "tiny")


@pytest.fixture(scope="module")
def seeing(make_server, folder):
    with make_server(ServerOptions(served_model_name="tiny", limit_videos_per_prompt=1), model=folder) as running:
        yield running


def shown(*videos, text="what is it?", pictures=(PICTURE,)):
    parts = [{"type": "image_url", "image_url": {"url": url_of(file_of(one))}} for one in pictures]
    parts += [{"type": "video_url", "video_url": {"url": url}} for url in videos]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def chat(server, messages, **fields):
    return server.post("/v1/chat/completions", messages=messages, **GREEDY | fields)


def test_a_chat_with_a_picture_and_a_video_answers_as_an_engine_without_a_server(seeing, folder, kind):
    prompt = f"<|im_start|>user\n{kind.picture}{kind.video}what is it?<|im_end|>\n<|im_start|>assistant\n"
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLMEngine(str(folder), dtype="float32", num_threads=1, num_kv_blocks=64) as engine:
        [expected] = engine.generate([{"prompt": prompt, "images": [PICTURE], "videos": [FRAMES]}], params)
    for _ in range(2):
        answer = chat(seeing, shown(URL), return_token_ids=True).json()
        assert answer["choices"][0]["token_ids"] == expected["token_ids"]
    assert answer["usage"]["prompt_tokens"] == expected["num_tokens_input"]
    tokenized = seeing.post("/tokenize", messages=shown(URL)).json()
    assert tokenized["count"] == expected["num_tokens_input"]
    text = seeing.engine.tokenizer.decode(tokenized["tokens"], skip_special_tokens=False)
    assert [text.count(each) for each in kind.written] == [1] * len(kind.written)


def test_responses_and_messages_answer_as_a_chat_does(seeing):
    text = chat(seeing, shown(URL, pictures=())).json()["choices"][0]["message"]["content"]
    content = [{"type": "input_video", "video_url": URL}, {"type": "input_text", "text": "what is it?"}]
    answer = seeing.post(
        "/v1/responses", input=[{"role": "user", "content": content}], max_output_tokens=8, temperature=0
    ).json()
    assert answer["output"][0]["content"][0]["text"] == text
    for source in (SOURCE, {"type": "url", "url": URL}):
        blocks = [{"type": "video", "source": source}, {"type": "text", "text": "what is it?"}]
        answer = seeing.post("/v1/messages", messages=[{"role": "user", "content": blocks}], **GREEDY).json()
        assert answer["content"][0]["text"] == text


def test_a_stored_response_keeps_its_videos_for_those_that_go_on_from_it(seeing):
    content = [{"type": "input_video", "video_url": URL}, {"type": "input_text", "text": "what is it?"}]
    first = seeing.post("/v1/responses", input=[{"role": "user", "content": content}], **RESPONSE).json()
    listed = httpx.get(f"{seeing.url}/v1/responses/{first['id']}/input_items").json()["data"]
    assert listed[0]["content"][0] == {"type": "input_video", "video_url": URL}
    more = seeing.post("/v1/responses", input="and now?", previous_response_id=first["id"], **RESPONSE).json()
    assert more["usage"]["input_tokens"] > first["usage"]["input_tokens"] + RESPONSE["max_output_tokens"]


def test_results_of_tools_have_videos_where_their_api_has(seeing, kind):
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_video", "video_url": URL}]}
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "video", "source": SOURCE}]}
    messages = [{"role": "user", "content": "look"}, used, {"role": "user", "content": [block]}]
    counted = [
        seeing.post("/v1/responses", input=[call, result], **RESPONSE).json()["usage"]["input_tokens"],
        seeing.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"],
    ]
    assert min(counted) > kind.num_tokens


def test_the_other_apis_refuse_videos_in_the_same_words(seeing):
    """Each names the field that has them."""

    def asked(url):
        content = [{"type": "input_video", "video_url": url}] * 2
        yield "input", seeing.post("/v1/responses", input=[{"role": "user", "content": content}], **RESPONSE)
        blocks = [{"type": "video", "source": {"type": "url", "url": url}}] * 2
        yield "messages", seeing.post("/v1/messages", messages=[{"role": "user", "content": blocks}], **GREEDY)

    for name, answer in asked(URL):
        error = answer.json()["error"]
        assert (answer.status_code, name in error.get("param", name)) == (400, True), answer.text
        assert "there are 2 videos; a prompt may have 1" in error["message"]
    content = [{"type": "input_video", "video_url": {"url": URL}}]
    answer = seeing.post("/v1/responses", input=[{"role": "user", "content": content}])
    assert "must have a string 'video_url'; there are no files here" in answer.json()["error"]["message"]


def test_commands_in_the_terminal_make_the_prompts_of_the_server(seeing, server, kind, tmp_path):
    pytest.importorskip("av")
    file = tmp_path / "film.MP4"
    file.write_bytes(video_file(grey_frames(4)))
    parts = [part_of_file("video", file), *shown(URL)[0]["content"][:1]]

    def prompt_of(running, content):
        async def make():
            with chats_of(running.engine) as chats:
                return await chats.prompt([{"role": "user", "content": content}])

        return asyncio.run_coroutine_threadsafe(make(), running.loop).result(60)

    prompt = prompt_of(seeing, parts)
    tokens = seeing.post("/tokenize", messages=[{"role": "user", "content": parts}]).json()["tokens"]
    assert prompt.token_ids == [tokens]
    assert len(prompt.images[0]) == 1 + kind.of_four
    with pytest.raises(APIError, match="sees no pictures"):
        prompt_of(server, parts[:1])


def test_clients_learn_that_a_model_sees_videos(seeing):
    models = httpx.get(f"{seeing.url}/v1/models").json()["data"]
    assert models[0]["input_modalities"] == ["text", "image", "video"]


def test_what_cannot_be_served_is_refused(seeing, server, kind):
    refused = {
        "there are 2 videos; a prompt may have 1": shown(URL, URL),
        "video 1 of 1: it is an address of https, and nothing is fetched": shown("https://example.com/a.mp4"),
        "has 2 video tokens": shown(URL, text=kind.video),
        "must have an object 'video_url'": [{"role": "user", "content": [{"type": "video_url"}]}],
        "go into messages of user or tool": [{"role": "system", "content": shown(URL)[0]["content"]}],
    }
    for reason, messages in refused.items():
        if "nothing is fetched" in reason:
            pytest.importorskip("av")
        answer = chat(seeing, messages)
        assert (answer.status_code, reason in answer.json()["error"]["message"]) == (400, True), answer.text
    assert "sees no pictures" in chat(server, shown(URL, pictures=())).json()["error"]["message"]
