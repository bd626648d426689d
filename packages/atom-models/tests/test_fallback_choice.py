"""Which code serves a checkpoint, and what transformers' layers are refused for."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from atom_kernels.protocols import CacheFormat
from atom_models import (
    BuildContext,
    UnsupportedArchitectureError,
    build_model,
    load_model,
    model_requirements,
    open_checkpoint,
)
from atom_models.fallback.choice import choose_implementation

pytest.importorskip("transformers")

import torch
import transformers

from tiny_architectures import SIZES
from tiny_decoders import make_decoder

pytestmark = pytest.mark.usefixtures("quiet_transformers")


def with_fields(folder: Path, **fields: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


@pytest.mark.parametrize(
    ("model_type", "requested", "chosen"),
    [
        ("llama", "auto", "atom"),
        ("llama", "atom", "atom"),
        ("llama", "transformers", "transformers"),
        ("olmo2", "auto", "transformers"),
    ],
)
def test_our_file_goes_first_and_transformers_serves_the_others(tmp_path, model_type, requested, chosen):
    checkpoint = open_checkpoint(make_decoder(model_type, tmp_path))
    assert choose_implementation(checkpoint, requested).name == chosen
    assert model_requirements(checkpoint, requested).implementation.name == chosen


def test_our_own_code_is_not_replaced_where_it_is_asked_for(tmp_path):
    folder = make_decoder("olmo2", tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match="the architecture Olmo2ForCausalLM is not supported"):
        load_model(folder, model_impl="atom")


def test_the_log_says_which_code_runs_a_model(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        load_model(make_decoder("olmo2", tmp_path), dtype="float32")
    assert "Olmo2ForCausalLM is run by transformers' layers over our attention (there is no file" in caplog.text


def test_without_transformers_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    folder = make_decoder("olmo2", tmp_path)
    monkeypatch.setattr("atom_models.fallback.choice.find_spec", lambda name: None)
    with pytest.raises(UnsupportedArchitectureError, match=r"transformers is not installed \(pip install"):
        load_model(folder)


def test_code_of_a_folder_is_never_run(tmp_path):
    folder = with_fields(make_decoder("olmo2", tmp_path), model_type="mine", architectures=["MineForCausalLM"])
    with_fields(folder, auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.MineForCausalLM"})
    (folder / "mine.py").write_text("raise RuntimeError('it ran')")
    with pytest.raises(UnsupportedArchitectureError, match="code of models in a checkpoint's folder is never run"):
        load_model(folder)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("lfm2", r"layer_types\[0\] is 'conv'"),
        ("diffllama", "DiffLlamaAttention calls attention twice"),
        ("bloom", "0 of 2 layers call transformers' attention interface"),
    ],
)
def test_what_would_leak_between_packed_sequences_is_refused_by_name(tmp_path, model_type, reason):
    with pytest.raises(UnsupportedArchitectureError, match=rf"'{model_type}' cannot run here.*{reason}"):
        load_model(make_decoder(model_type, tmp_path), dtype="float32")


def test_types_that_choose_attention_from_a_list_of_their_own_are_refused_by_name(tmp_path):
    config = transformers.AutoConfig.for_model("gptj", **SIZES, architectures=["GPTJForCausalLM"])
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match="'gptj' cannot run here: they have attention of their own"):
        build_model(open_checkpoint(tmp_path), BuildContext(model_impl="transformers"))


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotations_that_grow_with_the_batch_run_within_their_own_length_alone(tmp_path, rope_type):
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0}
    if rope_type == "longrope":
        rope |= {"long_factor": [4.0] * 8, "short_factor": [1.5] * 8, "original_max_position_embeddings": 256}
    model_type, length = ("phi3", 512) if rope_type == "longrope" else ("olmo2", 256)
    fields = {"max_position_embeddings": length, "original_max_position_embeddings": 256}
    folder = with_fields(make_decoder(model_type, tmp_path), rope_parameters=rope, **fields)
    with pytest.raises(UnsupportedArchitectureError, match=rf"rope_type '{rope_type}'.*give --max-model-len 256"):
        load_model(folder, dtype="float32", max_model_len=257)
    prompts = [[*range(5, 90)], [7, 8]]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for prompt, ours in zip(
        prompts, load_model(folder, dtype="float32", max_model_len=256).logits(prompts), strict=True
    ):
        with torch.inference_mode():
            theirs = model(torch.tensor([prompt])).logits[0]
        assert (ours - theirs).abs().max() <= 1e-4 * (theirs.max() - theirs.min())


def test_quantization_is_refused(tmp_path):
    with pytest.raises(UnsupportedArchitectureError, match="they run on plain weights"):
        load_model(make_decoder("olmo2", tmp_path), quantization="int8")


def test_a_drafter_that_reads_single_layers_is_refused(tmp_path):
    checkpoint = open_checkpoint(make_decoder("olmo2", tmp_path))
    with pytest.raises(UnsupportedArchitectureError, match="no hidden states of single layers, which a drafter asks"):
        build_model(checkpoint, BuildContext(aux_hidden_states=(0,)))


def test_weights_that_are_missing_or_unknown_are_named(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_decoder("olmoe", tmp_path)
    weights = load_file(folder / "model.safetensors")
    gone = "model.layers.1.mlp.experts.3.up_proj.weight"
    weights["model.layers.1.extra.weight"] = weights.pop(gone)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(Exception, match=rf"1 missing weight: {gone}; 1 unexpected weight: model.layers.1.extra"):
        load_model(folder)


def test_parameters_and_cache_are_counted_as_transformers_counts_them(tmp_path):
    folder = make_decoder("gemma2", tmp_path)
    needs = model_requirements(open_checkpoint(folder))
    assert needs.num_parameters == transformers.AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    # Two layers of 2 heads of 24 numbers each for keys and values, in two bytes.
    assert needs.kv_bytes_per_token[CacheFormat("bfloat16")] == 2 * 2 * 2 * 24 * 2
    assert [group.spec.describe() for group in needs.cache_groups][1:] != []
