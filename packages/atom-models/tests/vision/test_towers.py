"""Towers in models: when they are built, how they are held, and what is counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom_models import BuildContext, CheckpointError, build_model, load_model, model_requirements, open_checkpoint
from atom_models.groups import Groups, Stage
from atom_models.layers.loadable import loadable
from atom_models.model import num_idle_weights
from atom_models.quantization import ONLINE
from atom_models.requirements.sharing import OneOf
from atom_models.vision.reading import vision_spec
from atom_models.vision.sees import num_tower_weights
from atom_models.vision.spec import VisionSpec
from tiny_pictures import IMAGE, SPEC, picture
from tiny_videos import KIMI, video_spec

TinyFamily = Callable[[str], Path]


def built(folder: Path, **how: Any) -> Any:
    return build_model(open_checkpoint(folder), BuildContext(dtype=torch.float32, **how))


def changed(folder: Path, target: Path, file: str = "config.json", **fields: Any) -> Path:
    """A checkpoint without weights, one of whose files has other fields."""
    for name in ("config.json", "preprocessor_config.json"):
        shutil.copy(folder / name, target)
    content = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps(content | fields))
    return target


def test_a_model_says_what_it_sees(tiny_family: TinyFamily):
    checkpoint = open_checkpoint(tiny_family("qwen3_vl"))
    halves = (0.5, 0.5, 0.5)
    assert vision_spec(checkpoint) == VisionSpec(0, 382, 383, 4, 2, 64, 6400, halves, halves)
    assert built(checkpoint.path).vision_spec == vision_spec(checkpoint)
    assert vision_spec(open_checkpoint(tiny_family("qwen3"))) is None
    assert vision_spec(open_checkpoint(tiny_family("kimi_k25"))) == replace(
        vision_spec(checkpoint) or SPEC,
        start_token_id=None,
        end_token_id=None,
        has_threefold_positions=False,
        resizing="padded",
        max_side=128,
        video=video_spec(0, KIMI, picture_frames=4, min_pixels=64, max_pixels=1600, timestamps="hh:mm:ss.fff"),
    )


def test_rows_of_pictures_end_with_the_tokens_that_the_tokenizer_has_for_that(tiny_family: TinyFamily, tmp_path: Path):
    spec = vision_spec(open_checkpoint(tiny_family("mistral3")))
    clip = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    # Without such tokens those of the published tokenizers.
    assert spec == VisionSpec(0, None, 13, 4, 2, 64, 6400, *clip, False, "shrunk", 80, 12)
    folder = changed(tiny_family("mistral3"), tmp_path)
    tokens = [{"id": 31, "content": "[IMG_END]"}, {"id": 30, "content": "[IMG_BREAK]"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"33": {"content": "[IMG_END]"}}}')
    other = vision_spec(open_checkpoint(folder))
    assert other is not None
    assert (other.row_token_id, other.end_token_id) == (30, 33)


@pytest.mark.parametrize(
    ("processor", "longest"),
    [
        ({"size": {"height": 40, "width": 40}}, 40),
        ({"size": {"longest_edge": 44}}, 44),
        ({"do_pad": True}, 1024),
        ({}, 80),
    ],
)
def test_the_longer_side_of_a_picture_is_the_processors_or_the_towers(
    processor: dict[str, Any], longest: int, tiny_family: TinyFamily, tmp_path: Path
):
    folder = changed(tiny_family("mistral3"), tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    spec = vision_spec(open_checkpoint(folder))
    assert spec is not None
    assert (spec.max_side, spec.max_pixels) == (longest, (-(-longest // 8) * 8) ** 2)


@pytest.mark.parametrize(
    ("processor", "patches", "of_side"),
    [({"max_patches": 64, "size": {"max_height": 16, "max_width": 16}}, 64, 16), ({"in_patch_limit": 99}, 99, 512)],
)
def test_bounds_of_patches_are_read_as_published_and_as_transformers_writes_them(
    processor: dict[str, Any], patches: int, of_side: int, tiny_family: TinyFamily, tmp_path: Path
):
    folder = changed(tiny_family("kimi_k25"), tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    spec = vision_spec(open_checkpoint(folder))
    assert spec is not None
    assert (spec.max_pixels, spec.max_side) == (patches * 16, of_side * 4)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("mistral3", {"size": {"height": 40, "width": 44}}, "both directions must have one"),
        ("mistral3", {"size": 448}, "size is 448, not an object"),
        ("mistral3", {"size": {"longest_edge": 0}}, "size is 0; it must be an integer from 1 on"),
        ("mistral3", {"resample": 2}, "resample is 2, which is not implemented; it can be 3"),
        ("kimi_k25", {"media_proc_cfg": {"fixed_output_tokens": 64}}, "fixed_output_tokens is 64, which is not implem"),
        ("kimi_k25", {"media_proc_cfg": {"patch_size": 14}}, "patch_size is 14, and config.json says 4"),
        ("kimi_k25", {"merge_size": 3}, "merge_size is 3, and config.json says 2"),
        ("kimi_k25", {"media_proc_cfg": {"in_patch_limit": "many"}}, "has 'many' as in_patch_limit"),
    ],
)
def test_processors_of_other_towers_are_refused_where_they_are_not_ours(
    family, fields, message, tiny_family: TinyFamily, tmp_path: Path
):
    folder = changed(tiny_family(family), tmp_path, "preprocessor_config.json", **fields)
    with pytest.raises(CheckpointError, match=message):
        vision_spec(open_checkpoint(folder))


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("mistral3", {"head_dim": 4}, "head_dim is 4; hidden_size is 16, of which each of 2 heads has 8"),
        ("mistral3", {"num_channels": 1}, "num_channels is 1"),
        ("kimi_k25", {"init_pos_emb_height": 8}, "the table of positions has 8 rows and 6 columns"),
        ("kimi_k25", {"mm_hidden_size": 8}, "mm_hidden_size is 8, and the tower gives 16"),
        ("kimi_k25", {"merge_kernel_size": [2, 1]}, "both directions must have one"),
        ("kimi_k25", {"pos_emb_type": "learnable_by_interp"}, "pos_emb_type is 'learnable_by_interp'"),
    ],
)
def test_so_are_other_towers_that_do_not_fit(family, fields, message, tiny_family: TinyFamily, tmp_path: Path):
    folder = tiny_family(family)
    tower = json.loads((folder / "config.json").read_text())["vision_config"]
    with pytest.raises(CheckpointError, match=message):
        built(changed(folder, tmp_path, vision_config=tower | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mistral4"}, "model_type is 'mistral4', which is not supported .* be mistral or ministral3"),
        ({"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "lacks original_max_position_embeddings"),
    ],
)
def test_texts_of_other_models_are_refused(fields, message, tiny_family: TinyFamily, tmp_path: Path):
    folder = tiny_family("mistral3")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    with pytest.raises(CheckpointError, match=message):
        built(changed(folder, tmp_path, text_config=text | fields))


def test_a_tower_whose_last_layers_are_left_out_is_refused(tiny_family: TinyFamily, tmp_path: Path):
    with pytest.raises(CheckpointError, match="vision_feature_layer is -2"):
        built(changed(tiny_family("mistral3"), tmp_path, vision_feature_layer=-2))


def test_the_text_part_of_a_config_may_be_nested_or_not(
    tiny_family: TinyFamily, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Qwen2.5-VL's is published beside the tower's, and nested by recent releases of transformers."""
    folder = tiny_family("qwen2_5_vl")
    flat = json.loads((folder / "config.json").read_text())
    outside = ("architectures", "model_type", "vision_config", "image_token_id", "tie_word_embeddings")
    outer = {name: value for name, value in flat.items() if name in outside or name.startswith("vision_")}
    nested = outer | {"text_config": {name: value for name, value in flat.items() if name not in outer}}
    shutil.copy(folder / "preprocessor_config.json", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(nested))
    models = [built(folder), built(tmp_path)]
    assert models[0].config == models[1].config
    assert models[0].vision_spec == models[1].vision_spec
    assert [one.message for one in caplog.records if one.name.startswith("atom_models")] == []


def test_without_a_file_of_the_processor_a_family_has_its_own_sizes(tiny_family: TinyFamily, tmp_path: Path):
    folder = changed(tiny_family("qwen2_5_vl"), tmp_path)
    (folder / "preprocessor_config.json").unlink()
    spec = vision_spec(open_checkpoint(folder))
    assert spec is not None
    assert (spec.min_pixels, spec.max_pixels) == (56 * 56, 28 * 28 * 16384)
    assert spec.mean == (0.48145466, 0.4578275, 0.40821073)
    (folder / "processor_config.json").write_text('{"image_processor": {"size": {"longest_edge": 4000}}}')
    spec = vision_spec(open_checkpoint(folder))
    assert spec is not None
    assert (spec.min_pixels, spec.max_pixels) == (56 * 56, 4000)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patch_size": 14}, "patch_size is 14, and config.json says 4"),
        ({"do_resize": False}, "do_resize is False, which is not implemented; it can be True"),
        ({"rescale_factor": 1.0}, "rescale_factor is 1.0, which is not implemented"),
        ({"min_pixels": 7000}, "at least 7000 and at most 6400 pixels"),
        ({"min_pixels": 0}, "has 0 as min_pixels"),
        ({"max_pixels": "many"}, "has 'many' as max_pixels"),
        ({"image_mean": [0.5, 0.5]}, "it must be a list of three numbers"),
        ({"image_std": [0.5, 0, 0.5]}, "no number of it can be 0"),
        ({"size": 448}, "size is 448, not an object"),
    ],
)
def test_a_processor_that_is_not_ours_is_refused(fields, message, tiny_family: TinyFamily, tmp_path: Path):
    folder = changed(tiny_family("qwen3_vl"), tmp_path, "preprocessor_config.json", **fields)
    with pytest.raises(CheckpointError, match=message):
        vision_spec(open_checkpoint(folder))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_token_id": None}, "config.json lacks image_token_id"),
        ({"vision_config": 5}, "vision_config is 5, not an object"),
        ({"vision_config": {"patch_size": 4, "spatial_merge_size": 2}}, "config.json lacks depth"),
    ],
)
def test_a_tower_that_cannot_be_meant_is_refused(fields, message, tiny_family: TinyFamily, tmp_path: Path):
    with pytest.raises(CheckpointError, match=message):
        built(changed(tiny_family("qwen3_vl"), tmp_path, **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"out_hidden_size": 40}, "the tower gives 80 elements .* hidden_size is 64"),
        ({"num_heads": 8}, "each head needs a multiple of 4 elements"),
        ({"deepstack_visual_indexes": [2]}, "deepstack_visual_indexes has 2; depth is 2"),
        ({"in_channels": 4}, "in_channels is 4"),
    ],
)
def test_so_is_one_that_does_not_fit_the_model(fields, message, tiny_family: TinyFamily, tmp_path: Path):
    folder = tiny_family("qwen3_vl")
    tower = json.loads((folder / "config.json").read_text())["vision_config"]
    with pytest.raises(CheckpointError, match=message):
        built(changed(folder, tmp_path, vision_config=tower | fields))


def test_a_language_model_alone_has_no_tower_and_says_so(tiny_family: TinyFamily, caplog: pytest.LogCaptureFixture):
    folder = tiny_family("qwen3_vl")
    assert built(folder).vision is not None
    assert [one.message for one in caplog.records if one.name.startswith("atom_models")] == []
    alone = built(folder, language_model_only=True)
    assert alone.vision is None
    assert alone.vision_spec is None
    assert "it is served for text alone" in caplog.text
    assert alone.ignored_prefixes == ("model.visual.",)
    for family, names in (
        ("mistral3", ("vision_tower.", "multi_modal_projector.")),
        ("kimi_k25", ("vision_tower.", "mm_projector.")),
    ):
        assert built(tiny_family(family), language_model_only=True).ignored_prefixes == names


def test_a_model_that_takes_no_pictures_refuses_them(tiny_family: TinyFamily):
    loaded = load_model(tiny_family("qwen3"), progress=False)
    with pytest.raises(ValueError, match="the model takes no pictures"):
        loaded.logits([[3, *IMAGE]], images=[[picture(8, 8)]])


def test_every_rank_has_the_whole_tower_and_the_first_stage_alone_has_one(tiny_family: TinyFamily):
    def weights(model: Any) -> int:
        return sum(one.num_numbers for layer in loadable(model.vision) for one in layer.weights())

    folder = tiny_family("qwen3_vl")
    whole, rank = built(folder), built(folder, groups=Groups(OneOf(1, 2)))
    assert weights(whole) == weights(rank) > 0
    stages = [built(folder, groups=Groups(stage=Stage(index, 2))) for index in range(2)]
    assert [stage.vision is not None for stage in stages] == [True, False]
    assert stages[1].vision_spec == whole.vision_spec


@pytest.mark.usefixtures("quiet_transformers")
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "qwen3_5", "mistral3", "kimi_k25"])
def test_plans_count_the_tower_among_the_weights_and_not_in_steps(family: str, tiny_family: TinyFamily):
    folder = tiny_family(family)
    with torch.device("meta"):
        theirs = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.from_pretrained(folder))
    names = ("visual", "vision_tower", "multi_modal_projector", "mm_projector")
    tower = sum(one.numel() for name, one in theirs.model.named_parameters() if name.startswith(names))
    needs, model = model_requirements(open_checkpoint(folder)), built(folder)
    biases = sum(one.numel() for name, one in theirs.named_buffers() if name.endswith("e_score_correction_bias"))
    assert needs.num_parameters == sum(parameter.numel() for parameter in theirs.parameters()) + biases
    assert num_tower_weights(model) == tower
    assert needs.num_parameters - needs.num_active_parameters == num_idle_weights(model) >= tower
    whole = needs.on_rank(1)
    assert whole is not None
    alone = built(folder, language_model_only=True)
    text = model_requirements(open_checkpoint(folder), language_model_only=True)
    assert text.num_active_parameters == needs.num_active_parameters
    assert text.num_parameters == needs.num_parameters - tower
    assert sum(one.num_numbers * count for one, count in whole.work.matrices.items()) <= sum(
        one.num_numbers for layer in loadable(alone) for one in layer.weights()
    )


@pytest.mark.parametrize("family", ["qwen3_vl", "mistral3", "kimi_k25"])
def test_a_tower_stays_dense_where_weights_are_rounded(family: str, tiny_family: TinyFamily):
    model = built(tiny_family(family), quantization=ONLINE["int8"])
    held = {one.held().held for layer in loadable(model.vision) for one in layer.weights() if one.held is not None}
    assert held == {"float32"}
    layer = model.model.layers[0].mlp.down_proj
    assert layer.weights()[0].held().held == "int8 per row"


def test_positions_in_three_directions_are_refused_by_a_model_without_pictures(tiny_family: TinyFamily):
    alone = built(tiny_family("qwen3_vl"), language_model_only=True)
    with pytest.raises(ValueError, match=r"positions are \[3, T\], and tokens of this model have one each"):
        alone(torch.zeros(2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int64))


def test_sections_that_do_not_fit_the_heads_are_refused(tiny_family: TinyFamily, tmp_path: Path):
    folder = tiny_family("qwen3_vl")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    text["rope_scaling"] = {"rope_type": "default", "mrope_section": [1, 1, 1]}
    with pytest.raises(CheckpointError, match="three mrope sections that add up to 16"):
        built(changed(folder, tmp_path, text_config=text))
