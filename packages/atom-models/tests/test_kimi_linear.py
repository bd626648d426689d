"""Kimi-Linear: which layers have attention, what only its configs say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_kernels.delta import DeltaNetProblem
from atom_models import CheckpointError, load_model, mixer_layers, open_checkpoint
from atom_models.architectures.kimi_linear import KimiLinearConfig
from atom_models.config.reading import read_config
from published_configs import FOLDER, write_published_config

TinyFamily = Callable[[str], Path]


def config_with(**fields: Any) -> KimiLinearConfig:
    return read_config(KimiLinearConfig, json.loads((FOLDER / "kimi-linear-48b-a3b.json").read_text()) | fields)


def layers_with_attention(config: KimiLinearConfig) -> list[int]:
    return [layer_id for layer_id in range(config.num_hidden_layers) if config.has_attention(layer_id)]


def test_the_publisher_counts_layers_from_one():
    assert layers_with_attention(config_with()) == [3, 7, 11, 15, 19, 23, 26]


def test_transformers_has_a_word_for_each_layer():
    kinds = ["full_attention" if layer_id in (0, 5) else "linear_attention" for layer_id in range(27)]
    assert layers_with_attention(config_with(layer_types=kinds)) == [0, 5]


def test_the_publisher_has_names_of_its_own_for_sizes(tmp_path: Path):
    config = config_with()
    assert (config.n_routed_experts, config.num_experts_per_tok, config.n_shared_experts) == (256, 8, 1)
    assert open_checkpoint(write_published_config("kimi-linear-48b-a3b", tmp_path)).max_model_len == 1048576


def test_nothing_is_rotated(tiny_family: TinyFamily):
    layers = mixer_layers(load_model(tiny_family("kimi_linear"), progress=False).model).values()
    attention = [layer for layer in layers if not isinstance(layer.problem, DeltaNetProblem)]
    assert [layer._rotary for layer in attention] == [None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope is False"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax'"),
        ({"linear_attn_config": {"num_heads": 4}}, "linear_attn_config lacks head_dim"),
        ({"layer_types": ["sliding_attention"] * 27}, "layer_types has 'sliding_attention'; allowed are"),
    ],
)
def test_what_would_be_another_model_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        config_with(**fields)
