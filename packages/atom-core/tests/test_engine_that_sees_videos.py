"""Prompts with videos: what never changes a token, and tokens equal to those of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from atom_core import LLMEngine, SamplingParams
from atom_core.engine.inputs.fitted_videos import as_video
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, Video
from atom_models.checkpoint import open_checkpoint
from atom_models.vision.reading import vision_spec
from atom_models.vision.spec import VisionSpec
from seeing_models import END, IMAGE, START, VIDEO, make_seeing, picture
from tiny_videos import embeddings_of_kimi, patches

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 128, "num_threads": 1, "skip_tokenizer_init": True}


def frames(count: int, height: int = 24, width: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def parts_of(spec: VisionSpec) -> list[list[list[int] | Image | Video]]:
    """Prompts of texts, pictures and videos: of odd lengths, two in one, with a picture between, and again."""
    sizes = spec.video.sizes(5, 24, 40, spec)  # type: ignore[union-attr]
    assert set(sizes) == {((24, 40), (24, 40))}  # nothing is resized
    odd, even, other = (as_video(frames(count, seed=seed), spec) for count, seed in ((5, 1), (4, 2), (5, 3)))
    return [
        [[5, 6, 7], odd, [8, 9], picture(1), [10, 11]],
        [[5, 6, 7], other, [8, 9], picture(1), [10, 11]],
        [even, odd, [12]],
        [[30] * 20],
        [[5, 6, 7], odd, [8, 9], picture(1), [10, 11, 13]],
        [picture(2, 3, 3), [14, 15], even, [16]],
    ]


def given(parts: Sequence[list[int] | Image | Video], spec: VisionSpec) -> dict[str, Any]:
    """As programs give it, in the tokens of a model. Times are two tokens each, as it were."""
    assert spec.video is not None
    tokens: list[int] = []
    start, end = ([] if token is None else [token] for token in (spec.start_token_id, spec.end_token_id))
    for part in parts:
        if isinstance(part, list):
            tokens += part
        elif isinstance(part, Image):
            tokens += [*start, spec.image_token_id, *end]
        elif spec.video.has_timestamps:
            for second in part.seconds:
                tokens += [40, 41 + int(second), *start, spec.video.token_id, *end]
        else:
            tokens += [*start, *[spec.video.token_id] * len(part.images), *end]
    if spec.has_one_token:
        shown = [part.images if isinstance(part, Video) else (part,) for part in parts if not isinstance(part, list)]
        return {"prompt_token_ids": tokens, "images": [image for images in shown for image in images]}
    videos = [part for part in parts if isinstance(part, Video)]
    return {"prompt_token_ids": tokens, "images": [p for p in parts if isinstance(p, Image)], "videos": videos}


@torch.inference_mode()
def tokens_of_transformers(folder: Path, prompts: Sequence[dict[str, Any]], spec: VisionSpec) -> list[list[int]]:
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    return [_tokens_of_one(model, prompt, spec) for prompt in prompts]


def _tokens_of_one(model: Any, prompt: dict[str, Any], spec: VisionSpec) -> list[int]:
    moving = iter([image for video in prompt.get("videos", ()) for image in video.images])
    still, ids = iter(prompt["images"]), []
    for token in prompt["prompt_token_ids"]:
        shown = next(moving if token == VIDEO else still) if token in spec.placeholders else None
        ids += [token] * (1 if shown is None else spec.num_tokens(shown.height, shown.width))
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int() + 2 * (inputs["input_ids"] == VIDEO).int()
    if spec.has_one_token:
        inputs = {"inputs_embeds": embeddings_of_kimi(model, ids, list(map(_array, prompt["images"])), spec)}
    elif prompt["images"]:
        values = patches(spec, [_array(one)[None] for one in prompt["images"]])
        inputs["pixel_values"], inputs["image_grid_thw"] = values
    if prompt.get("videos"):
        values = patches(spec, [torch.cat([_array(one) for one in video.images]) for video in prompt["videos"]])
        inputs["pixel_values_videos"], inputs["video_grid_thw"] = values
    count = GREEDY.max_tokens
    output = model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None)
    return output[0, -GREEDY.max_tokens :].tolist()


def _array(image: Image) -> torch.Tensor:
    of_video = () if image.num_frames == 1 else (image.num_frames,)
    return torch.from_numpy(
        np.frombuffer(image.pixels, np.uint8).reshape(*of_video, image.height, image.width, 3).copy()
    )


@pytest.fixture(scope="module", params=["qwen3_vl", "kimi_k25"])
def folder(
    request: pytest.FixtureRequest, tiny_family: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return tiny_family("kimi_k25") if request.param == "kimi_k25" else make_seeing(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def spec(folder: Path) -> VisionSpec:
    found = vision_spec(open_checkpoint(folder))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def prompts(spec: VisionSpec) -> list[dict[str, Any]]:
    return [given(parts, spec) for parts in parts_of(spec)]


def tokens_of(engine: LLMEngine, prompts: Sequence[Any], params: SamplingParams = GREEDY) -> list[list[int]]:
    outputs = engine.generate(list(prompts), params, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[dict[str, Any]]) -> Iterator[list[list[int]]]:
    """What each prompt gives alone, without a prefix cache."""
    with LLMEngine(str(folder), enable_prefix_caching=False, image_cache_memory=0, **SETTINGS) as engine:
        yield [tokens_of(engine, [prompt])[0] for prompt in prompts]


def test_each_prompt_alone_gives_the_tokens_of_transformers(folder, prompts, spec, expected) -> None:
    assert expected == tokens_of_transformers(folder, prompts, spec)
    assert expected[0] != expected[1]  # frames alone tell them apart


CUT = {"max_num_batched_tokens": 7, "max_num_seqs": 2}
SMALL = {"max_num_image_tokens": 64, "image_cache_memory": 0}


@pytest.mark.parametrize("settings", [{}, CUT, SMALL, CUT | {"enable_prefix_caching": False}], ids=str)
def test_batches_chunks_and_a_warm_cache_change_no_token(folder, prompts, expected, settings) -> None:
    with LLMEngine(str(folder), **SETTINGS | settings) as engine:
        assert tokens_of(engine, prompts) == expected
        assert tokens_of(engine, prompts * 2) == expected * 2
        again = engine.generate(prompts[:1], GREEDY, use_tqdm=False)
        if settings.get("enable_prefix_caching", True):
            assert again[0]["num_cached_tokens"] > 45  # behind the whole video


def test_preempted_requests_see_again(folder, prompts) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with LLMEngine(str(folder), **SETTINGS) as engine:
        alone = [tokens_of(engine, [prompt], params)[0] for prompt in prompts]
    with LLMEngine(str(folder), **SETTINGS | {"num_kv_blocks": 20, "max_model_len": 250}) as engine:
        assert tokens_of(engine, prompts, params) == alone
        assert engine.stats.num_preemptions > 0


def test_positions_in_time_and_layers_that_keep_states_go_with_it(
    tiny_family: Callable[[str], Path], tmp_path: Path
) -> None:
    for family in ("qwen2_5_vl", "qwen3_5"):
        copy = tmp_path / family
        shutil.copytree(tiny_family(family), copy)
        config = json.loads((copy / "config.json").read_text()) | {"video_token_id": 380}
        (copy / "config.json").write_text(json.dumps(config))
        pixels = {"size": {"shortest_edge": 64, "longest_edge": 24 * 40 * 6}}
        (copy / "video_preprocessor_config.json").write_text(json.dumps(pixels))
        found = []
        for settings in ({"enable_prefix_caching": False}, {}, CUT):
            with LLMEngine(str(copy), **SETTINGS | settings) as engine:
                spec = engine.info.images
                assert spec is not None
                own = [given(parts, spec) for parts in parts_of(spec)]
                found += [tokens_of(engine, own) for _ in range(2)]
        assert found == found[:1] * 6
        assert len(set(map(tuple, found[0]))) > 2


def test_a_text_with_a_video_is_written_as_the_model_was_made_to_read_it(tmp_path: Path) -> None:
    text = "<|vision_start|><|video_pad|><|vision_end|>a"
    with LLMEngine(str(make_seeing(tmp_path)), **SETTINGS | {"skip_tokenizer_init": False}) as engine:
        spec = engine.info.images
        assert spec is not None
        [output] = engine.generate([{"prompt": text, "videos": [frames(3)]}], GREEDY, use_tqdm=False)
        times = [engine.tokenizer.encode(f"<{second:.1f} seconds>") for second in (0.25, 1.0)]  # type: ignore[union-attr]
        [letter] = engine.tokenizer.encode("a")  # type: ignore[union-attr]
        tokens = [*times[0], START, VIDEO, END, *times[1], START, VIDEO, END, letter]
        ids = {"prompt_token_ids": tokens, "videos": [frames(3)]}
        assert tokens_of(engine, [ids]) == [output["token_ids"]]
        with pytest.raises(InvalidRequestError, match="has 0 video tokens, and there are 1 videos"):
            engine.generate([{"prompt": "a", "videos": [frames(3)]}], GREEDY)
