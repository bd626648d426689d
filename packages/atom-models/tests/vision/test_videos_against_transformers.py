"""Models that see videos = transformers, in float32: odd numbers of frames, pictures and texts between, two videos."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom_models import LoadedModel, load_model
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.vision.placing import LatePicture, place_pictures
from tiny_pictures import IMAGE, SPEC, picture
from tiny_videos import embeddings_of_kimi, patches

pytestmark = pytest.mark.usefixtures("quiet_transformers")

VIDEO = 380
START, END = SPEC.start_token_id, SPEC.end_token_id
FAMILIES = ["qwen3_vl", "qwen3_5", "qwen3_vl_moe", "qwen2_5_vl", "kimi_k25"]


@dataclass(frozen=True)
class Clip:
    """Frames uint8 ``[frames, height, width, 3]``, so many taken of a second."""

    frames: torch.Tensor
    fps: float = 2.0


def clip(count: int, height: int, width: int, seed: int = 0, fps: float = 2.0) -> Clip:
    return Clip(torch.stack([picture(height, width, seed + 100 * index) for index in range(count)]), fps)


# An odd number of frames; a picture between texts; two videos; one that begins a prompt, and one of two frames.
PROMPTS: Sequence[tuple[list[int | Clip], list[torch.Tensor]]] = (
    ([9, 8, clip(5, 24, 40), 7, 6, *IMAGE, 11, 12], [picture(40, 8)]),
    ([3, 4, *IMAGE, clip(4, 8, 16), 5, clip(3, 16, 32, seed=7), 13], [picture(8, 8)]),
    ([3, 4, 5, 6, 7], []),
    ([clip(2, 56, 24, fps=1.5), 17, 18], []),
)


@dataclass(frozen=True)
class Tiny:
    ours: LoadedModel
    theirs: Any
    expected: list[torch.Tensor]


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tiny_family: Callable[[str], Path], tmp_path_factory) -> Tiny:
    folder = tmp_path_factory.mktemp("videos") / request.param
    shutil.copytree(tiny_family(request.param), folder)
    config = json.loads((folder / "config.json").read_text()) | {"video_token_id": VIDEO}
    config["vision_config"]["tokens_per_second"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_model(folder, progress=False)
    return Tiny(ours, theirs, [their_logits(theirs, ours.model, *prompt) for prompt in PROMPTS])


def given(model: Any, parts: list[int | Clip], pictures: list[torch.Tensor]) -> tuple[list[int], list[Any]]:
    """A prompt as it is given to ours: a placeholder for each picture, and for each two or four frames of a video."""
    video, left, tokens, shown = model.vision_spec.video, iter(pictures), [], []
    for part in parts:
        if isinstance(part, Clip):
            seen, lags = map(torch.stack, video.split(list(part.frames))), video.lags(len(part.frames), part.fps)
            shown += [one if lag is None else LatePicture(one, lag) for one, lag in zip(seen, lags, strict=True)]
            each = [START, video.token_id, END]
            tokens += (
                [token for second in range(len(lags)) for token in (60 + second, *each)]  # as it were "<0.3 seconds>"
                if video.has_timestamps
                else [START, *[video.token_id] * len(lags), END]
            )
        else:
            tokens.append(part)
            if part == SPEC.image_token_id:
                shown.append(next(left))
    return tokens, shown


def positions_of_the_paper(theirs: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Those of transformers, where text goes on behind the largest position of a video (Qwen2-VL's paper, section 2.1).

    transformers 5.23 counts rows and columns of the video alone there; its first release of the model, vLLM and the
    positions of what is generated count its time, too.
    """
    kinds, found, position = inputs["mm_token_type_ids"][0], [], 0
    left = {1: iter(inputs.get("image_grid_thw", ())), 2: iter(inputs["video_grid_thw"])}
    seconds = iter(inputs["second_per_grid_ts"])
    for kind, count in zip(*torch.unique_consecutive(kinds, return_counts=True), strict=True):
        if kind == 0:
            part = torch.arange(int(count)).expand(3, -1) + position
        else:
            step = 2 * next(seconds) if kind == 2 else 1
            part = theirs.model.get_vision_position_ids(position, next(left[int(kind)]), 1, 2, step)
        found.append(part)
        position = int(part.max()) + 1
    return torch.cat(found, dim=1).unsqueeze(1)


@torch.inference_mode()
def their_logits(theirs: Any, model: Any, parts: list[int | Clip], pictures: list[torch.Tensor]) -> torch.Tensor:
    spec, (tokens, shown) = model.vision_spec, given(model, parts, pictures)
    [step] = place_pictures(model, [tokens], [shown])  # its tokens alone
    ids = torch.tensor([step.token_ids])
    if spec.has_one_token:
        return theirs(inputs_embeds=embeddings_of_kimi(theirs, step.token_ids, shown, spec)).logits[0]
    kinds = (ids == SPEC.image_token_id).int() + 2 * (ids == VIDEO).int()
    clips = [part for part in parts if isinstance(part, Clip)]
    inputs: dict[str, Any] = {"mm_token_type_ids": kinds}
    if pictures:
        inputs["pixel_values"], inputs["image_grid_thw"] = patches(spec, [one[None] for one in pictures])
    if clips:
        inputs["pixel_values_videos"], inputs["video_grid_thw"] = patches(spec, [one.frames for one in clips])
        if not spec.video.has_timestamps:
            inputs["second_per_grid_ts"] = torch.tensor([2 / one.fps for one in clips])
            inputs["position_ids"] = positions_of_the_paper(theirs, inputs)
    return theirs(input_ids=ids, **(inputs if shown else {})).logits[0]


def has_timestamps(tiny: Tiny) -> bool:
    model: Any = tiny.ours.model
    return model.vision_spec.video.has_timestamps


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-4 * (theirs.max() - theirs.min())


def test_a_ragged_batch_of_texts_pictures_and_videos_gives_the_logits_of_transformers(tiny: Tiny):
    texts, shown = zip(*(given(tiny.ours.model, *prompt) for prompt in PROMPTS), strict=True)
    for ours, theirs in zip(tiny.ours.logits(texts, images=shown), tiny.expected, strict=True):
        assert_close(ours, theirs)
    for text, own, theirs in zip(texts, shown, tiny.expected, strict=True):
        assert_close(tiny.ours.logits([text], images=[own])[0], theirs)


def test_each_frame_and_each_step_in_time_changes_what_is_said(tiny: Tiny):
    [(first, second, video, *rest), pictures] = PROMPTS[0]
    assert isinstance(video, Clip)
    for index in range(len(video.frames)):
        frames = video.frames.clone()
        frames[index] = 255 - frames[index]
        tokens, shown = given(tiny.ours.model, [first, second, Clip(frames), *rest], pictures)
        [ours] = tiny.ours.logits([tokens], images=[shown])
        assert (ours - tiny.expected[0])[-1].abs().max() > 1e-3
    if not has_timestamps(tiny):
        tokens, shown = given(tiny.ours.model, [first, second, Clip(video.frames, 1.0), *rest], pictures)
        [ours] = tiny.ours.logits([tokens], images=[shown])
        assert (ours - tiny.expected[0])[-1].abs().max() > 1e-4


def test_chunks_that_end_inside_of_videos_give_the_same_logits(tiny: Tiny):
    model, expected = tiny.ours.model, tiny.expected[0]
    tokens, shown = given(model, *PROMPTS[0])
    [whole] = place_pictures(model, [tokens], [shown])
    assert whole.seen is not None
    run, rows, length = PagedRun(model, 16), [], len(whole.token_ids)
    for start, end in itertools.pairwise([0, 7, 20, 29, 41, length - 1, length]):
        part = whole.token_ids[start:end], start, range(16)
        seen = whole.seen.between(start, end)
        positions = None if whole.positions is None else whole.positions[:, start:end]
        rows += run.step([SequenceStep(*part, positions=positions, seen=seen)])
    assert_close(tiny.ours.logits_of(torch.cat(rows)), expected)


def test_a_video_that_is_larger_than_it_is_long_has_all_positions_of_transformers(tiny: Tiny):
    if has_timestamps(tiny):
        return  # all prompts above have
    own = tiny.theirs.model.get_rope_index
    ids = torch.tensor([[9] * 3 + [VIDEO] * 45 + [9]])
    inputs = {"mm_token_type_ids": 2 * (ids == VIDEO).int(), "video_grid_thw": torch.tensor([[3, 6, 10]])}
    inputs["second_per_grid_ts"] = torch.tensor([1.0])
    assert (own(ids, **inputs)[0] == positions_of_the_paper(tiny.theirs, inputs)).all()


def test_a_video_of_another_number_of_frames_at_once_is_refused(tiny: Tiny):
    model: Any = tiny.ours.model
    video = model.vision_spec.video
    for shape in ((video.picture_frames + 1, 8, 8, 3), (2, 2, 8, 8, 3)):
        with pytest.raises(ValueError, match=f"a video is .*; the model sees {video.picture_frames} frames at once"):
            tiny.ours.logits([[video.token_id, 5]], images=[[torch.zeros(shape, dtype=torch.uint8)]])
