"""Towers that have no file here: transformers' own, what they see, and what they are refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.llava.modeling_llava import LlavaModel, LlavaMultiModalProjector

from atom_models import (
    BuildContext,
    LoadedModel,
    UnsupportedArchitectureError,
    build_model,
    load_model,
    load_weights,
    model_requirements,
)
from atom_models import open_checkpoint as opened
from atom_models.fallback import trial
from atom_models.vision.positions import widened
from atom_models.vision.sees import num_tower_weights
from tiny_fallback_seeing import IMAGE, REFUSED, SEEING, SIDE, make_fallback_seeing
from tiny_pictures import picture

pytestmark = pytest.mark.usefixtures("quiet_transformers")

FIRST, SECOND, THIRD = (picture(SIDE, SIDE, seed) for seed in range(3))
PROMPTS = [[5, 6, IMAGE, 7, 8, IMAGE, 9], [11], [12, IMAGE, 13], [14] * 20]
PICTURES = [[FIRST, SECOND], [], [THIRD], []]


@pytest.fixture(autouse=True)
def _anew():
    trial._trial.cache_clear()
    yield
    trial._trial.cache_clear()


def their_logits(folder: Path, ours: LoadedModel, tokens: list[int], pictures: list[torch.Tensor]) -> torch.Tensor:
    theirs: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    wide = [token for one in tokens for token in [one] * (9 if one == IMAGE else 1)]
    vision: Any = ours.model.vision
    given = {"pixel_values": vision.pixel_values(pictures)} if pictures else {}
    with torch.inference_mode():
        return theirs(input_ids=torch.tensor([wide]), **given).logits[0]


def texts_alone(folder: Path) -> LoadedModel:
    checkpoint, context = opened(folder), BuildContext(dtype=torch.float32, language_model_only=True)
    model = build_model(checkpoint, context)
    load_weights(model, checkpoint)
    return LoadedModel(model, checkpoint, context)


def with_fields(folder: Path, file: str = "config.json", **fields: Any) -> Path:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.mark.parametrize("name", SEEING)
def test_a_batch_of_texts_and_pictures_gives_the_logits_of_transformers(name: str, tmp_path: Path):
    ours = load_model(make_fallback_seeing(name, tmp_path), dtype="float32")
    assert not ours.model.vision.capturable
    for index, logits in enumerate(ours.logits(PROMPTS, images=PICTURES)):
        expected = their_logits(tmp_path, ours, PROMPTS[index], PICTURES[index])
        assert logits.shape == expected.shape
        assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
        if PICTURES[index]:
            others = ours.logits([PROMPTS[index]], images=[[picture(SIDE, SIDE, 9), *PICTURES[index][1:]]])[0]
            assert (logits - others).abs().max() > 0.01 * (expected.max() - expected.min())


def test_pictures_of_many_sizes_go_through_a_tower_that_takes_them(tmp_path: Path):
    ours = load_model(make_fallback_seeing("pixtral", tmp_path), dtype="float32")
    vision: Any = ours.model.vision
    sizes = [[(8, 12), (12, 24), (8, 12)], [], [(4, 20)], [(24, 24), (12, 8)]]
    pictures = [[picture(height, width, seed) for seed, (height, width) in enumerate(own)] for own in sizes]
    prompts = [[5, IMAGE, 6, IMAGE, 7, IMAGE, 8], [11], [12, IMAGE, 13], [IMAGE, IMAGE, 9]]
    theirs: Any = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    found = ours.logits(prompts, images=pictures)
    for logits, prompt, own in zip(found, prompts, pictures, strict=True):
        wide, _ = widened(prompt, [(one.shape[0], one.shape[1]) for one in own], vision.spec)
        with torch.inference_mode():
            expected = theirs(input_ids=torch.tensor([wide]), **vision.given(own)).logits[0]
        assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


def test_weights_go_by_the_names_that_earlier_releases_saved(tmp_path: Path):
    folder = make_fallback_seeing("llava", tmp_path)
    expected = load_model(folder, dtype="float32").logits(PROMPTS, images=PICTURES)
    tensors = load_file(folder / "model.safetensors")
    earlier = {name.replace("vision_tower.", "vision_tower.vision_model."): one for name, one in tensors.items()}
    assert earlier.keys() != tensors.keys()
    save_file(earlier, folder / "model.safetensors", metadata={"format": "pt"})
    again = load_model(folder, dtype="float32").logits(PROMPTS, images=PICTURES)
    for found, logits in zip(again, expected, strict=True):
        assert torch.equal(found, logits)


def test_texts_alone_load_no_tower(tmp_path: Path):
    folder = make_fallback_seeing("llava", tmp_path)
    seeing, alone = load_model(folder, dtype="float32"), texts_alone(folder)
    assert alone.model.vision is None
    assert alone.model.vision_spec is None
    names = [name for name, one in alone.model.named_parameters() if "vision_tower" in name and not one.is_meta]
    assert names == []
    for found, logits in zip(alone.logits([[5, 6, 7], [8]]), seeing.logits([[5, 6, 7], [8]]), strict=True):
        assert torch.equal(found, logits)
    with pytest.raises(ValueError, match="the model takes no pictures"):
        alone.logits([[5, IMAGE, 6]], images=[[FIRST]])


def test_weights_of_the_tower_are_counted_as_those_of_other_towers(tmp_path: Path):
    folder = make_fallback_seeing("llava", tmp_path)
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(folder).model
    parts = (theirs.vision_tower, theirs.multi_modal_projector)
    expected = sum(one.numel() for part in parts for one in part.parameters())
    assert num_tower_weights(load_model(folder, dtype="float32").model) == expected
    needs = model_requirements(opened(folder))
    assert needs.num_parameters - needs.num_active_parameters >= expected
    assert needs.implementation.name == "transformers"


MISMATCHED = {
    "processor": ("preprocessor_config.json", {"image_processor_type": "LlavaNextImageProcessor"}, "'LlavaNextImage"),
    "no processor": ("preprocessor_config.json", {"image_processor_type": None}, "image_processor_type 'None'"),
    "features": ("config.json", {"vision_feature_select_strategy": "full"}, r"features of \[20, 64\].*\[18, 64\]"),
    "token": ("config.json", {"image_token_index": 512}, "the image token is 512, and there are embeddings of 512 tok"),
}


@pytest.mark.parametrize("case", MISMATCHED)
def test_pictures_that_do_not_fit_are_refused_by_name_and_texts_are_served(case: str, tmp_path: Path):
    file, fields, reason = MISMATCHED[case]
    folder = with_fields(make_fallback_seeing("llava", tmp_path), file, **fields)
    with pytest.raises(UnsupportedArchitectureError, match=rf"pictures of 'llava' .*{reason}.*--language-model-only"):
        load_model(folder, dtype="float32")
    assert texts_alone(folder).logits([[5, 6]])[0].shape == (2, 512)


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"paligemma"}))
def test_other_types_serve_their_texts_alone(name: str, tmp_path: Path):
    folder = make_fallback_seeing(name, tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=rf"pictures of '{name}' .* --language-model-only"):
        load_model(folder, dtype="float32")
    alone, prompts = texts_alone(folder), [list(range(5, 25)), [7], [9, 8, 7]]
    for prompt, logits in zip(prompts, alone.logits(prompts), strict=True):
        expected = their_logits(folder, alone, prompt, [])
        assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


def test_a_tower_of_ours_is_not_replaced(tiny_family: Callable[[str], Path]):
    with pytest.raises(UnsupportedArchitectureError, match="of what our own file sees: leave model_impl out"):
        load_model(tiny_family("mistral3"), model_impl="transformers")


def test_a_decoder_that_is_told_where_pictures_are_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forward = LlavaModel.forward

    def told(self: Any, *args: Any, mm_token_type_ids: Any = None, **given: Any) -> Any:
        return forward(self, *args, **given)

    monkeypatch.setattr(LlavaModel, "forward", told)
    with pytest.raises(UnsupportedArchitectureError, match="its decoder reads mm_token_type_ids"):
        load_model(make_fallback_seeing("llava", tmp_path), dtype="float32")


def test_texts_whose_tokens_see_what_follows_are_refused(tmp_path: Path):
    with pytest.raises(UnsupportedArchitectureError, match="'paligemma' cannot run here: GemmaAttention is not causal"):
        load_model(make_fallback_seeing("paligemma", tmp_path), dtype="float32")


def test_a_tower_in_which_pictures_touch_each_other_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forward = LlavaMultiModalProjector.forward
    monkeypatch.setattr(LlavaMultiModalProjector, "forward", lambda self, x: forward(self, x + 0.1 * x.mean(0)))
    folder = make_fallback_seeing("llava", tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=r"pictures of 'llava' .* in a trial, packed sequence 1 of"):
        load_model(folder, dtype="float32")


def test_features_that_a_model_changes_on_their_way_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forward = LlavaModel.forward

    def scaled(self: Any, *args: Any, pixel_values: Any = None, **given: Any) -> Any:
        return forward(self, *args, pixel_values=None if pixel_values is None else 2 * pixel_values, **given)

    monkeypatch.setattr(LlavaModel, "forward", scaled)
    folder = make_fallback_seeing("llava", tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match="in a trial, packed sequence 1 of 3 got logits"):
        load_model(folder, dtype="float32")
