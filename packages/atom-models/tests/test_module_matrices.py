"""What a trace says of the matrices of a model's modules."""

from __future__ import annotations

import json

import pytest
import torch

from atom_models import load_model
from atom_models.requirements.module_matrices import module_matrices
from tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def modules(tiny_llama):
    return dict(load_model(tiny_llama, torch.float32).model.named_modules())


def test_every_matrix_outside_of_attention_is_told_with_its_bytes(modules):
    found = module_matrices(modules)
    parts = {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}
    layers = {f"model.layers.{number}.{part}" for number in range(2) for part in parts}
    assert found.keys() == {*layers, "lm_head"}
    for name, matrix in found.items():
        assert matrix["bytes"] >= 4 * matrix["numbers"] > 0
        assert matrix["is_head"] is (name == "lm_head")
        assert matrix["experts"] == [1, 1]


def test_the_numbers_of_a_merged_layer_are_those_of_all_its_parts(modules, tiny_llama):
    config = json.loads((tiny_llama / "config.json").read_text())
    matrix = module_matrices(modules)["model.layers.0.mlp.gate_up_proj"]
    assert matrix["numbers"] == 2 * config["hidden_size"] * config["intermediate_size"]


def test_a_tied_head_multiplies_with_the_embedding_s_table(tmp_path):
    model = load_model(make_tiny_llama(tmp_path, tie=True, vocab=512, hidden=64), torch.float32).model
    matrix = module_matrices(dict(model.named_modules()))["lm_head"]
    assert (matrix["numbers"], matrix["bytes"]) == (512 * 64, 4 * 512 * 64)
