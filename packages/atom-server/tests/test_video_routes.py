"""Videos over HTTP, on a tiny model that sees them."""

from __future__ import annotations

import httpx
import pytest
from PIL import Image

from atom_core import LLMEngine, SamplingParams
from atom_server import ServerOptions
from pictures import file_of, two_colors, url_of
from tiny_seeing import make_tiny_seeing
from videos import url_of_frames

FRAMES = [Image.effect_noise((40, 24), 90).convert("RGB") for _ in range(3)]
URL = url_of_frames(FRAMES)
PICTURE = two_colors(24, 24)
BEFORE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>"
PROMPT = BEFORE + "what is it?<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_seeing(tmp_path_factory.mktemp("seeing") / "tiny")


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


def test_a_chat_with_a_picture_and_a_video_answers_as_an_engine_without_a_server(seeing, folder):
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLMEngine(str(folder), dtype="float32", num_threads=1, num_kv_blocks=64) as engine:
        [expected] = engine.generate([{"prompt": PROMPT, "images": [PICTURE], "videos": [FRAMES]}], params)
    for _ in range(2):
        answer = chat(seeing, shown(URL), return_token_ids=True).json()
        assert answer["choices"][0]["token_ids"] == expected["token_ids"]
    assert answer["usage"]["prompt_tokens"] == expected["num_tokens_input"]
    tokenized = seeing.post("/tokenize", messages=shown(URL)).json()
    assert tokenized["count"] == expected["num_tokens_input"]
    text = seeing.engine.tokenizer.decode(tokenized["tokens"], skip_special_tokens=False)
    assert text.count("<0.2 seconds><|vision_start|><|video_pad|>") == 1
    assert text.count("<1.0 seconds><|vision_start|><|video_pad|>") == 1


def test_clients_learn_that_a_model_sees_videos(seeing):
    models = httpx.get(f"{seeing.url}/v1/models").json()["data"]
    assert models[0]["input_modalities"] == ["text", "image", "video"]


def test_what_cannot_be_served_is_refused(seeing, server):
    refused = {
        "there are 2 videos; a prompt may have 1": shown(URL, URL),
        "video 1 of 1: it is an address of https, and nothing is fetched": shown("https://example.com/a.mp4"),
        "has 2 video tokens": shown(URL, text="<|video_pad|>"),
        "must have an object 'video_url'": [{"role": "user", "content": [{"type": "video_url"}]}],
        "go into messages of user or tool": [{"role": "system", "content": shown(URL)[0]["content"]}],
    }
    for reason, messages in refused.items():
        if "nothing is fetched" in reason:
            pytest.importorskip("av")
        answer = chat(seeing, messages)
        assert (answer.status_code, reason in answer.json()["error"]["message"]) == (400, True), answer.text
    assert "sees no pictures" in chat(server, shown(URL, pictures=())).json()["error"]["message"]
