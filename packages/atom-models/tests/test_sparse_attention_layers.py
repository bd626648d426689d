"""Sparse attention as models compose it: which layers have an index, what is cached, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from atom_kernels.attention.index import IndexProblem
from atom_kernels.attention.sparse import SparseMlaProblem
from atom_models import CheckpointError, load_model, mixer_layers
from atom_models.architectures.glm_moe_dsa import GlmMoeDsaConfig
from atom_models.config.reading import read_config
from atom_models.forward_context import ForwardContext, set_forward_context
from atom_models.layers import LightningIndex
from published_configs import FOLDER
from tiny_architectures import make_tiny

TinyFamily = Callable[[str], Path]
# Layers of GLM-5.2 that have an index of their own.
GLM_5_2 = [0, 1, 2, *range(6, 78, 4)]


def glm_config(**fields: Any) -> GlmMoeDsaConfig:
    published = json.loads((FOLDER / "glm-5.json").read_text())
    return read_config(GlmMoeDsaConfig, published | fields)


def layers_with_an_index(config: GlmMoeDsaConfig) -> list[int]:
    return [layer_id for layer_id in range(config.num_hidden_layers) if config.has_index(layer_id)]


def test_every_layer_of_glm_5_has_an_index():
    assert layers_with_an_index(glm_config()) == [*range(78)]


@pytest.mark.parametrize(
    "spelling",
    [
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_pattern": "".join("F" if layer_id in GLM_5_2 else "S" for layer_id in range(78))},
        {"indexer_types": ["full" if layer_id in GLM_5_2 else "shared" for layer_id in range(78)]},
    ],
)
def test_layers_of_glm_5_2_share_an_index_in_each_of_its_spellings(spelling: dict[str, Any]):
    assert layers_with_an_index(glm_config(index_share_for_mtp_iteration=True, **spelling)) == GLM_5_2


@pytest.mark.parametrize("types", [["shared", *["full"] * 77], ["full"] * 77, ["full", *["half"] * 77]])
def test_a_pattern_that_no_model_can_have_is_refused(types: list[str]):
    with pytest.raises(CheckpointError, match=r"indexer_types or index_topk_pattern is .*: it must have full or share"):
        glm_config(indexer_types=types)


def test_a_layer_that_shares_an_index_has_no_keys_of_one(tiny_family: TinyFamily):
    layers = mixer_layers(load_model(tiny_family("glm_moe_dsa"), progress=False).model)
    kinds = [type(layer.problem) for layer in layers.values()]
    assert kinds == [IndexProblem, SparseMlaProblem, SparseMlaProblem, IndexProblem, SparseMlaProblem]


def test_keys_and_latents_of_a_layer_are_kept_alike(tiny_family: TinyFamily):
    layers = mixer_layers(load_model(tiny_family("deepseek_v32"), progress=False).model)
    assert {layer.problem.keeps for layer in layers.values()} == {next(iter(layers.values())).problem.keeps}


@pytest.mark.parametrize(("family", "interleaved"), [("deepseek_v32", False), ("glm_moe_dsa", True)])
def test_index_keys_turn_as_the_family_does(tiny_family: TinyFamily, family: str, interleaved: bool):
    layers = mixer_layers(load_model(tiny_family(family), progress=False).model).values()
    turns = [layer._rotary.interleaved for layer in layers if isinstance(layer, LightningIndex)]
    assert set(turns) == {interleaved}


def test_a_traced_or_captured_index_gives_whole_numbers(tiny_family: TinyFamily):
    layers = mixer_layers(load_model(tiny_family("deepseek_v32"), progress=False).model).values()
    index = next(layer for layer in layers if isinstance(layer, LightningIndex))
    outs: list[torch.Tensor] = []
    inputs = (torch.empty(3, 32 * 24), torch.empty(3, 24), torch.empty(3, 32), torch.arange(3))
    with set_forward_context(ForwardContext({}, {}, between_graphs=lambda mix, inputs, out: outs.append(out))):
        index.mix(*inputs)
    with FakeTensorMode(allow_non_fake_inputs=True):
        outs.append(torch.ops.atom_models.mix(inputs, index.name, 8, index._out_dtype))
    assert [(out.shape, out.dtype) for out in outs] == [((3, 8), torch.int32)] * 2


def test_the_choice_of_positions_changes_the_logits(tmp_path: Path):
    """Else no test of these families would see an index that chooses wrongly."""
    folder = make_tiny("deepseek_v32", tmp_path)
    tokens = [[3 + 7 * place % 380 for place in range(60)]]
    sparse = load_model(folder, progress=False).logits(tokens)[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"index_topk": 60}))
    dense = load_model(folder, progress=False).logits(tokens)[0]
    assert (sparse - dense)[:8].abs().max() <= 1e-4 * (dense.max() - dense.min())
    assert (sparse - dense)[8:].abs().amax(dim=1).min() > 1e-3 * (dense.max() - dense.min())


@pytest.mark.parametrize("wrong", [{"q_lora_rank": None}, {"attention_bias": True}])
def test_what_no_published_model_has_is_refused(tmp_path: Path, wrong: dict[str, Any]):
    folder = make_tiny("deepseek_v32", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | wrong))
    with pytest.raises(ValueError, match="sparse attention needs a q_lora_rank, and has no biases"):
        load_model(folder, progress=False)
