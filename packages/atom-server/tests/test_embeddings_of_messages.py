"""Vectors of conversations with pictures, through `/v1/embeddings`, on a tiny model that sees."""

from __future__ import annotations

import concurrent.futures

import pytest
from openai.types import CreateEmbeddingResponse
from PIL import Image

from atom_core import LLMEngine
from embedding_folder import EOS, end_texts_with_a_token, write_json, write_modules
from pictures import file_of, two_colors, url_of
from tiny_seeing import make_tiny_seeing
from videos import url_of_frames

NOISE = Image.effect_noise((40, 30), 90).convert("RGB")
OTHER = two_colors(24, 24)
FRAMES = [Image.effect_noise((40, 24), 90).convert("RGB") for _ in range(3)]
INSTRUCTION = {"role": "system", "content": "Represent the user's input."}
SYSTEM = f"<|im_start|>system\n{INSTRUCTION['content']}<|im_end|>\n<|im_start|>user\n"
SHOWN, MOVING = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video"))
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_tiny_seeing(tmp_path_factory.mktemp("seeing") / "tiny")
    write_modules(folder)
    end_texts_with_a_token(folder / "tokenizer.json")
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"q": "hours"}, "default_prompt_name": "q"})
    return folder


@pytest.fixture(scope="module")
def seeing(make_server, folder):
    with make_server(model=folder) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder):
    """What an engine without a server makes of a picture, a text beside another one, a text, and a video."""
    with LLMEngine(str(folder), dtype="float32", num_threads=1, num_kv_blocks=64) as engine:

        def given(text, **shown):
            token_ids = engine.tokenizer.encode(SYSTEM + text + ANSWER, add_special_tokens=False)
            return {"prompt_token_ids": token_ids} | shown

        texts = [given(SHOWN, images=[NOISE]), given(SHOWN + "the sea", images=[OTHER]), given("the sea")]
        return engine.embed([*texts, {"prompt": SYSTEM + MOVING + ANSWER, "videos": [FRAMES]}])


def parts(*urls, text=None):
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*shown, *([{"type": "text", "text": text}] if text else [])]


CONVERSATIONS = [
    [INSTRUCTION, {"role": "user", "content": parts(url_of(file_of(NOISE)))}],
    [INSTRUCTION, {"role": "user", "content": parts(url_of(file_of(OTHER)), text="the sea")}],
    [INSTRUCTION, {"role": "user", "content": "the sea"}],
]


def embed(server, messages, **fields):
    return server.post("/v1/embeddings", messages=messages, **{"add_generation_prompt": True} | fields)


def vector(answer):
    assert answer.status_code == 200, answer.text
    [entry] = answer.json()["data"]
    return entry["embedding"]


def test_conversations_give_the_vectors_of_an_engine_alone_and_at_once(seeing, expected):
    alone = [vector(embed(seeing, messages)) for messages in CONVERSATIONS]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        together = list(threads.map(lambda messages: vector(embed(seeing, messages)), CONVERSATIONS * 2))
    for found in (alone, together[:3], together[3:]):
        for ours, theirs in zip(found, expected, strict=False):
            assert ours == pytest.approx(theirs, abs=1e-5)
    assert alone[0] != pytest.approx(alone[1], abs=1e-3)


def test_an_official_client_posts_messages_as_it_does_to_vllm(seeing, expected):
    with seeing.client() as client:
        body = {"model": client.models.list().data[0].id, "messages": CONVERSATIONS[0], "add_generation_prompt": True}
        answer = client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
    assert answer.data[0].embedding == pytest.approx(expected[0], abs=1e-5)
    counted = seeing.post("/tokenize", messages=CONVERSATIONS[0]).json()["count"]
    assert answer.usage.prompt_tokens == counted


def test_the_end_of_a_conversation_can_be_chosen(seeing):
    """That behind the turn, that of an open turn, that inside one, and the tokenizer's own."""
    turns, text = CONVERSATIONS[2], SYSTEM + "the sea" + ANSWER
    inside = [*turns, {"role": "assistant", "content": "x"}]
    ends = [
        (turns, {"add_generation_prompt": False}, text.removesuffix("<|im_start|>assistant\n")),
        (turns, {}, text),
        (inside, {"add_generation_prompt": False, "continue_final_message": True}, text + "x"),
        (turns, {"add_special_tokens": True}, text + EOS),
    ]
    for messages, fields, ended in ends:
        tokens = seeing.post("/tokenize", prompt=ended, add_special_tokens=False).json()["tokens"]
        of_tokens = vector(seeing.post("/v1/embeddings", input=tokens))
        assert vector(embed(seeing, messages, **fields)) == pytest.approx(of_tokens, abs=1e-5)


REFUSED = {
    "neither": ({}, "input", "give either 'input' or 'messages'"),
    "both": ({"input": "a", "messages": CONVERSATIONS[0]}, "input", "give either 'input' or 'messages'"),
    "prompt_name": ({"messages": CONVERSATIONS[0], "prompt_name": "q"}, "prompt_name", "goes with 'input'"),
    "both ends": (
        {"messages": CONVERSATIONS[0], "add_generation_prompt": True, "continue_final_message": True},
        "continue_final_message",
        "exclude each other",
    ),
    "a cut picture": ({"messages": CONVERSATIONS[0], "truncate_prompt_tokens": 9}, "truncate_prompt_tokens", "not cut"),
    "no picture": (
        {"messages": [{"role": "user", "content": parts("data:image/png;base64,AAAA")}]},
        "messages",
        "picture 1 of 1: its data is no picture",
    ),
    "a mark in a text": ({"messages": [{"role": "user", "content": SHOWN}]}, "messages", "image tokens"),
    "too long": (
        {"messages": [{"role": "user", "content": parts(*[url_of(file_of(Image.new("L", (64, 64))))] * 16)}]},
        "messages",
        "take more tokens than the context",
    ),
}


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named(seeing, fields, param, reason):
    answer = seeing.post("/v1/embeddings", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert reason in error["message"]


def test_videos_have_vectors_too_and_a_model_that_reads_text_refuses_pictures(seeing, server, expected):
    video = [{"type": "video_url", "video_url": {"url": url_of_frames(FRAMES)}}]
    messages = [INSTRUCTION, {"role": "user", "content": video}]
    # Its text is encoded with the token that this tokenizer puts behind each.
    assert vector(embed(seeing, messages, add_special_tokens=True)) == pytest.approx(expected[3], abs=1e-5)
    answer = embed(server, CONVERSATIONS[0])
    assert "sees no pictures" in answer.json()["error"]["message"]
    assert vector(embed(server, [{"role": "user", "content": "the sea"}]))
