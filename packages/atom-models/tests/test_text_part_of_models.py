"""The text part of models that take images as well: what is read of their checkpoints, and what is passed over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from atom_models import BuildContext, CheckpointError, build_model, load_model, model_requirements, open_checkpoint
from tiny_models import write_weights

TinyFamily = Callable[[str], Path]
WITH_IMAGES = {
    "qwen3_5": "model.visual.",
    "qwen3_5_moe": "model.visual.",
    "kimi_k25": "mm_projector.",
    "mistral3": "vision_tower.",
}


def changed(folder: Path, target: Path, **fields: Any) -> Path:
    """A checkpoint without weights whose text model's config has other fields; None takes a field away."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"] | fields
    config["text_config"] = {name: value for name, value in text.items() if value is not None}
    (target / "config.json").write_text(json.dumps(config))
    return target


def built(folder: Path) -> Any:
    return build_model(open_checkpoint(folder), BuildContext(dtype=torch.float32))


def test_a_line_says_that_a_model_is_served_for_text_alone(tiny_family: TinyFamily):
    folder = tiny_family("kimi_k25")
    assert model_requirements(open_checkpoint(folder)).warnings == ()
    [line] = model_requirements(open_checkpoint(folder), language_model_only=True).warnings
    assert "takes more than text (config.json has vision_config, image_token_id)" in line
    assert "served for text alone" in line


@pytest.mark.parametrize(("family", "tower"), WITH_IMAGES.items())
def test_weights_of_the_tower_are_passed_over_and_others_are_not(
    family: str, tower: str, tiny_family: TinyFamily, tmp_path: Path
):
    weights = load_file(tiny_family(family) / "model.safetensors")
    name = next(name for name in weights if name.startswith(tower))
    weights["another_tower.weight"] = weights[name]
    shutil.copy(tiny_family(family) / "config.json", tmp_path)
    write_weights(tmp_path, weights)
    with pytest.raises(CheckpointError, match=r"1 unexpected weight: another_tower\.weight$"):
        load_model(tmp_path, progress=False)


def test_a_quarter_of_a_head_rotates_in_a_qwen3_5_whose_config_does_not_say(tiny_family: TinyFamily, tmp_path: Path):
    rope = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [2, 1, 1]}
    model = built(changed(tiny_family("qwen3_5"), tmp_path, rope_parameters=rope))
    assert model.config.rope["partial_rotary_factor"] == 0.25


def test_a_qwen3_5_whose_attention_has_no_gate_is_refused(tiny_family: TinyFamily, tmp_path: Path):
    with pytest.raises(CheckpointError, match="attn_output_gate is False"):
        built(changed(tiny_family("qwen3_5"), tmp_path, attn_output_gate=False))


def test_a_mixture_is_refused_where_a_layer_without_experts_has_no_size(tiny_family: TinyFamily, tmp_path: Path):
    folder = changed(tiny_family("qwen3_5_moe"), tmp_path, mlp_only_layers=[1], intermediate_size=None)
    with pytest.raises(CheckpointError, match="layer 1 has no experts, and the config lacks intermediate_size"):
        built(folder)
