"""Encoders: hidden states and scores of labels equal those of transformers, and names of weights are as published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_models import CheckpointError, load_model, open_checkpoint
from tiny_encoders import FAMILIES, make_encoder, rewrite_config

# Ragged, odd, of one token, and as long as positions go.
TEXTS = [[2, 9, 3], [5], [2, *(7 + i % 60 for i in range(40)), 3], [2, *(5 + i * 7 % 90 for i in range(62)), 3]]


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_those_of_transformers(family: str, tmp_path: Path):
    reference = make_encoder(family, tmp_path)
    with torch.inference_mode():
        expected = [reference(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    found = load_model(tmp_path, "float32", progress=False).hidden_states(TEXTS)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("family", "pooling"), [*((family, "cls") for family in FAMILIES), ("modernbert", "mean")])
def test_scores_of_labels_equal_those_of_transformers(family: str, pooling: str, tmp_path: Path):
    reference = make_encoder(family, tmp_path, labels=3, classifier_pooling=pooling)
    loaded = load_model(tmp_path, "float32", progress=False)
    for text, states in zip(TEXTS, loaded.hidden_states(TEXTS), strict=True):
        pooled = states[:1] if pooling == "cls" else states.mean(dim=0, keepdim=True)
        with torch.inference_mode():
            expected = reference(torch.tensor([text])).logits
        torch.testing.assert_close(loaded.model.classify(pooled), expected, atol=2e-5, rtol=1e-4)


def saved_otherwise(folder: Path, rename, **more: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({rename(name): tensor for name, tensor in weights.items()} | more, folder / "model.safetensors")


def test_a_bert_of_old_is_read_with_its_prefix_and_what_pre_training_left(tmp_path: Path):
    """As Google's: names under `bert.`, gamma and beta, the table of positions, heads of the pre-training."""
    make_encoder("bert", tmp_path)
    expected = load_model(tmp_path, "float32", progress=False).hidden_states(TEXTS)

    def old(name: str) -> str:
        if "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")
        return f"bert.{name}"

    left = {"bert.embeddings.position_ids": torch.arange(64)[None], "cls.predictions.bias": torch.zeros(96)}
    saved_otherwise(tmp_path, old, **left)
    rewrite_config(tmp_path, architectures=["BertForMaskedLM"])
    for ours, theirs in zip(
        load_model(tmp_path, "float32", progress=False).hidden_states(TEXTS), expected, strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_weight_that_nobody_knows_is_refused(tmp_path: Path):
    make_encoder("bert", tmp_path)
    saved_otherwise(tmp_path, str, **{"encoder.layer.0.adapter.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"1 unexpected weight: encoder\.layer\.0\.adapter\.weight"):
        load_model(tmp_path, progress=False)


def test_an_old_config_of_modernbert_names_its_layers_and_angles_by_numbers(tmp_path: Path):
    make_encoder("modernbert", tmp_path)
    expected = load_model(tmp_path, "float32", progress=False).hidden_states(TEXTS)
    rewrite_config(
        tmp_path,
        layer_types=None,
        rope_parameters=None,
        global_attn_every_n_layers=3,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
    )
    for ours, theirs in zip(
        load_model(tmp_path, "float32", progress=False).hidden_states(TEXTS), expected, strict=True
    ):
        assert torch.equal(ours, theirs)


def test_positions_of_roberta_begin_behind_that_of_padding(tmp_path: Path):
    make_encoder("roberta", tmp_path)
    assert open_checkpoint(tmp_path).max_model_len == 64


def test_other_positions_than_a_table_are_refused(tmp_path: Path):
    make_encoder("bert", tmp_path)
    rewrite_config(tmp_path, position_embedding_type="relative_key")
    with pytest.raises(CheckpointError, match="position_embedding_type is 'relative_key', which would change"):
        load_model(tmp_path, progress=False)


def test_an_encoder_gives_no_logits_of_tokens(tmp_path: Path):
    make_encoder("bert", tmp_path)
    with pytest.raises(ValueError, match="gives no logits, BertModel is an encoder: use hidden_states"):
        load_model(tmp_path, "float32", progress=False).logits([[5]])
