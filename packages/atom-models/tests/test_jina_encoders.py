"""Jina's encoders: names of weights and fields of the config as Jina publishes them, and as `transformers` has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_models import CheckpointError, load_model, open_checkpoint
from tiny_encoders import make_encoder, rewrite_config
from tiny_jina import FAMILY, make_adapters, publish

TEXTS = [[2, 9, 3], [5], [2, *(5 + i * 7 % 90 for i in range(62)), 3]]
JINA = {
    "embeddings.LayerNorm": "emb_ln",
    "encoder.layer.": "encoder.layers.",
    "attention.output.dense": "mixer.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "output.LayerNorm": "norm2",
}
TRANSFORMERS = {
    "emb_ln": "embeddings.LayerNorm",
    "encoder.layers": "layers",
    "mixer.out_proj": "self_attn.o_proj",
    "norm1": "post_attention_layernorm",
    "norm2": "post_mlp_layernorm",
}


def states(folder: Path) -> list[torch.Tensor]:
    return load_model(folder, "float32", progress=False).hidden_states(TEXTS)


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def renamed(name: str, spelling: dict[str, str]) -> str:
    for old, new in spelling.items():
        name = name.replace(old, new)
    return name


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, list[torch.Tensor]]:
    make_encoder(FAMILY, tmp_path)
    return tmp_path, states(tmp_path)


@pytest.mark.parametrize("has_tasks", [False, True])
def test_weights_and_fields_are_read_as_jina_publishes_them(made, has_tasks: bool):
    folder, expected = made
    publish(folder, make_adapters(folder) if has_tasks else None)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.architecture, checkpoint.max_model_len) == ("JinaEmbeddingsV3Model", 64)
    assert_same(states(folder), expected)


def test_queries_keys_and_values_may_lie_apart_as_in_the_classes_of_transformers(made):
    folder, expected = made
    tensors: dict[str, torch.Tensor] = {}
    for stored, tensor in load_file(folder / "model.safetensors").items():
        name = renamed(stored, TRANSFORMERS)
        parts = zip("qkv", tensor.chunk(3), strict=True) if "mixer.Wqkv" in name else [("", tensor)]
        tensors |= {name.replace("mixer.Wqkv", f"self_attn.{part}_proj"): rows.clone() for part, rows in parts}
    save_file(tensors, folder / "model.safetensors")
    assert_same(states(folder), expected)


def test_angles_are_those_of_the_base_that_the_config_names(made):
    folder, expected = made
    publish(folder)
    rewrite_config(folder, rotary_emb_base=10.0)
    assert not torch.allclose(states(folder)[2], expected[2], atol=1e-3)


def test_scores_of_xlm_r_under_jinas_names_are_those_of_xlm_r(tmp_path: Path):
    """jina-reranker-v2 is XLM-R with its table of positions, and has names of Jina's code."""
    make_encoder("xlm-roberta", tmp_path, labels=1)
    plain = load_model(tmp_path, "float32", progress=False)
    pooled = [one[:1] for one in plain.hidden_states(TEXTS)]
    stored = load_file(tmp_path / "model.safetensors")
    tensors = {renamed(name, JINA): tensor for name, tensor in stored.items() if ".attention.self." not in name}
    for name in [name for name in stored if ".attention.self.query." in name]:
        parts = [stored[name.replace("query", part)] for part in ("query", "key", "value")]
        tensors[renamed(name.replace("attention.self.query", "mixer.Wqkv"), JINA)] = torch.cat(parts)
    save_file(tensors, tmp_path / "model.safetensors")
    under_other_names = load_model(tmp_path, "float32", progress=False)
    for ours, own in zip(under_other_names.hidden_states(TEXTS), pooled, strict=True):
        assert torch.equal(under_other_names.model.classify(ours[:1]), plain.model.classify(own))


def test_packed_rows_that_three_matrices_cannot_share_are_refused(made):
    folder, _ = made
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layers.0.mixer.Wqkv.weight"
    save_file(tensors | {name: tensors[name][:95].clone()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"Wqkv\.weight has 95 rows, which 3 matrices cannot share"):
        states(folder)
