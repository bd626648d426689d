"""Stages: runs of a model's layers, each built and loaded by itself, that give together what the whole model gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_models import BuildContext, CheckpointError, build_model, load_model, load_weights, mixer_layers
from atom_models.checkpoint import open_checkpoint
from atom_models.fallback.admission import FallbackRefusedError
from atom_models.groups import Groups, Stage
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.requirements import check_shared
from atom_models.weights.filling import check_fit
from tiny_architectures import FAMILIES, make_tiny
from tiny_models import make_tiny_llama

TOKENS = [5, 6, 7, 8, 9, 300, 383]


def build_stage(path: Path, index: int, count: int = 2) -> Any:
    context = BuildContext(dtype=torch.float32, groups=Groups(stage=Stage(index, count)))
    return build_model(open_checkpoint(path), context)


def load_stage(path: Path, index: int, count: int = 2) -> Any:
    model = build_stage(path, index, count)
    load_weights(model, open_checkpoint(path), progress=False)
    return model


def logits_of_stages(path: Path, count: int) -> torch.Tensor:
    """Each stage takes what the one before it gave."""
    handed_on = None
    for index in range(count):
        model = load_stage(path, index, count)
        [handed_on] = PagedRun(model, 1).step([SequenceStep(TOKENS, 0, [0])], handed_on)
    with torch.inference_mode():
        return model.compute_logits(handed_on)


def names_of(model: Any) -> set[str]:
    return {name for layer in loadable(model) for name in expected_weights(layer)}


QUICK = ["llama", "qwen3_moe", "deepseek_v3", "deepseek_v32", "gemma3", "nemotron"]
# `PagedRun` finds the pages of a step by a layer that has some, and their first stages keep states alone: atom-core's
# test_pipeline_parallel.py has them.
WITH_STATES = ["qwen3_next", "qwen3_5", "qwen3_5-text", "qwen3_5_moe", "qwen3_5_moe-text", "kimi_linear"]
OTHERS = [name for name in FAMILIES if name not in (*QUICK, *WITH_STATES)]


@pytest.mark.parametrize("family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_stages_give_the_logits_of_the_whole_model(family: str, tiny_family: Callable[[str], Path]):
    path = tiny_family(family)
    assert torch.equal(logits_of_stages(path, 2), load_model(path, "float32").logits([TOKENS])[0])


@pytest.mark.parametrize("tie", [False, True])
def test_each_weight_is_loaded_by_one_stage_but_a_table_that_is_tied(tie: bool, tmp_path: Path):
    path = make_tiny_llama(tmp_path / "m", tie=tie)
    first, last = (names_of(build_stage(path, index)) for index in range(2))
    whole = names_of(build_model(open_checkpoint(path), BuildContext()))
    table = "model.embed_tokens.weight"
    assert first | last == whole
    assert first & last == ({table} if tie else set())
    assert (table in first, "model.norm.weight" in last, "model.norm.weight" in first) == (True, True, False)
    assert torch.equal(logits_of_stages(path, 2), load_model(path).logits([TOKENS])[0])


def test_a_stage_in_the_middle_has_layers_alone(tmp_path: Path):
    path = make_tiny("llama", tmp_path / "m", num_hidden_layers=3)
    assert all(name.startswith("model.layers.1.") for name in names_of(build_stage(path, 1, 3)))
    assert torch.equal(logits_of_stages(path, 3), load_model(path, "float32").logits([TOKENS])[0])


def test_the_cache_of_a_stage_is_that_of_its_layers(tiny_llama: Path):
    assert [list(mixer_layers(build_stage(tiny_llama, index))) for index in range(2)] == [
        ["model.layers.0.self_attn.attn"],
        ["model.layers.1.self_attn.attn"],
    ]


def test_a_weight_that_no_stage_has_is_refused_by_each(tiny_llama: Path):
    names = names_of(build_model(open_checkpoint(tiny_llama), BuildContext()))
    for index in range(2):
        check_fit(build_stage(tiny_llama, index), names, "here")
        with pytest.raises(CheckpointError, match=r"1 unexpected weight: model\.layers\.7\.odd\.weight"):
            check_fit(build_stage(tiny_llama, index), names | {"model.layers.7.odd.weight"}, "here")


@pytest.mark.parametrize(
    ("num_layers", "count", "expected"), [(4, 2, [2, 2]), (7, 3, [3, 2, 2]), (5, 5, [1] * 5), (8, 3, [3, 3, 2])]
)
def test_the_first_stages_have_what_does_not_come_out_even(num_layers: int, count: int, expected: list[int]):
    stages = [Stage(index, count).layers(num_layers) for index in range(count)]
    assert [len(stage) for stage in stages] == expected
    assert [layer_id for stage in stages for layer_id in stage] == list(range(num_layers))


def test_more_stages_than_layers_are_refused(tiny_llama: Path):
    with pytest.raises(CheckpointError, match="num_hidden_layers is 2, and 3 pipeline stages need a layer each"):
        check_shared(open_checkpoint(tiny_llama), BuildContext(), 1, 3)


def test_a_stage_that_would_need_the_choice_of_the_layer_before_is_refused(tmp_path: Path):
    path = make_tiny("glm_moe_dsa", tmp_path / "m", indexer_types=["full", "full", "shared"])
    says = "layer 2 attends to what the layer before it chose, and a pipeline stage would begin there"
    with pytest.raises(CheckpointError, match=says):
        check_shared(open_checkpoint(path), BuildContext(), 1, 2)


def test_layers_of_transformers_have_no_stages(tiny_llama: Path):
    with pytest.raises(FallbackRefusedError, match="they are not split, and 2 stages are asked for"):
        check_shared(open_checkpoint(tiny_llama), BuildContext(model_impl="transformers"), 1, 2)
