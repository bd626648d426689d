"""DeepSeek, GLM and GPT-OSS: what single fields of their configs choose, held against transformers in float32."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MLP

from atom_models import load_model
from tiny_architectures import make_tiny, redraw, reference_model

pytestmark = pytest.mark.usefixtures("quiet_transformers")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "v2: greedy choices are scaled and know no groups": (
        "deepseek_v2-lite",
        {"routed_scaling_factor": 3.0, "n_group": 4, "topk_group": 2},
    ),
    "v3: weights need not be normalized": ("deepseek_v3", {"norm_topk_prob": False}),
    "v3: one group": ("deepseek_v3", {"n_group": 1, "topk_group": 1}),
    "v3: no yarn": ("deepseek_v3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
    "v3: all layers have experts": ("deepseek_v3", {"first_k_dense_replace": 0}),
    "glm: weights need not be normalized": ("glm4_moe", {"norm_topk_prob": False}),
    "glm: groups of experts": ("glm4_moe", {"n_group": 4, "topk_group": 2}),
    "glm: no norm of queries and keys, no biases": ("glm4_moe", {"use_qk_norm": False, "attention_bias": False}),
    "gpt-oss: another clamp": ("gpt_oss", {"swiglu_limit": 0.05}),
}


def assert_same_logits(folder: Path, theirs: Any, *, length: int = 40) -> None:
    draw = random.Random(0)
    tokens = [draw.randrange(3, 384) for _ in range(length)]
    [ours] = load_model(folder, progress=False).logits([tokens])
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    assert (ours - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


def saved_again(theirs: Any, folder: Path, *, without: tuple[str, ...] = (), **changes: Any) -> Path:
    """A checkpoint of `theirs` as it is now, with the config of `folder` but for some fields."""
    config = json.loads((folder / "config.json").read_text())
    theirs.save_pretrained(folder / "again")
    fields = {name: value for name, value in (config | changes).items() if name not in without}
    (folder / "again" / "config.json").write_text(json.dumps(fields))
    return folder / "again"


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path):
    family, overrides = CASES[case]
    folder = make_tiny(family, tmp_path, **overrides)
    assert_same_logits(folder, reference_model(folder))


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v2-lite"])
def test_normalized_weights_of_deepseek_v2_are_not_scaled(family: str, tmp_path: Path):
    """As in its published model code; transformers leaves `norm_topk_prob` aside."""
    folder = make_tiny(family, tmp_path, routed_scaling_factor=4.0)
    theirs = reference_model(folder)

    def normalize(gate: Any, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        logits, weights, experts = outputs
        return logits, weights / weights.sum(dim=-1, keepdim=True), experts

    for layer in theirs.model.layers[1:]:
        layer.mlp.gate.register_forward_hook(normalize)
    assert_same_logits(saved_again(theirs, folder, norm_topk_prob=True), theirs)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_what_a_config_of_deepseek_leaves_out_has_the_value_of_its_generation(family: str, tmp_path: Path):
    folder = make_tiny(family, tmp_path, norm_topk_prob=family == "deepseek_v3")
    left_out = ("norm_topk_prob", "moe_layer_freq", "rope_interleave", *(["topk_method"] * (family == "deepseek_v3")))
    theirs = reference_model(folder)
    assert_same_logits(saved_again(theirs, folder, without=left_out), theirs)


def test_layers_have_experts_as_often_as_the_config_says_behind_the_dense_ones(tmp_path: Path):
    """As in DeepSeek's published model code; transformers leaves `moe_layer_freq` aside."""
    folder = make_tiny("deepseek_v3", tmp_path, num_hidden_layers=5, first_k_dense_replace=1)
    theirs = reference_model(folder)
    for layer_id in (1, 3):
        theirs.model.layers[layer_id].mlp = DeepseekV3MLP(theirs.config)
    redraw(theirs)
    assert_same_logits(saved_again(theirs, folder, moe_layer_freq=2), theirs)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k25"])
def test_the_norms_of_latents_have_the_epsilon_of_the_config(family: str, tmp_path: Path):
    """As in engines that serve these models; transformers gives them 1e-6, whatever the config says."""
    folder = make_tiny(family, tmp_path, rms_norm_eps=0.3)
    theirs = reference_model(folder)
    for layer in theirs.model.layers:
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            assert norm.variance_epsilon == 1e-6
            norm.variance_epsilon = 0.3
    assert_same_logits(folder, theirs)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"])
def test_latents_as_small_as_the_epsilon_of_their_norm_are_normed_alike(family: str, tmp_path: Path):
    folder = make_tiny(family, tmp_path)
    theirs = reference_model(folder)
    with torch.no_grad():
        for layer in theirs.model.layers:
            layer.self_attn.q_a_proj.weight *= 2e-3
            layer.self_attn.kv_a_proj_with_mqa.weight *= 2e-3
            if family == "deepseek_v32":
                layer.self_attn.indexer.wk.weight *= 2e-3
    assert_same_logits(saved_again(theirs, folder), theirs)


def test_the_activation_of_gpt_oss_is_as_steep_as_the_config_says(tmp_path: Path):
    folder = make_tiny("gpt_oss", tmp_path, swiglu_alpha=0.6)
    theirs = reference_model(folder)
    assert_same_logits(saved_again(theirs, folder, swiglu_alpha=0.6), theirs)


def test_layers_of_gpt_oss_take_turns_and_begin_with_a_window(tmp_path: Path, tiny_family: Callable[[str], Path]):
    theirs = reference_model(tiny_family("gpt_oss"))
    assert theirs.config.layer_types == ["sliding_attention", "full_attention"] * 2
    published = tmp_path / "published"
    published.mkdir()
    for path in tiny_family("gpt_oss").iterdir():
        if path.is_file():
            (published / path.name).symlink_to(path)
    assert_same_logits(saved_again(theirs, published, without=("layer_types",)), theirs)
