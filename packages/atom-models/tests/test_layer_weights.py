"""`layer_weights`: what reports say of each kind of layer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_kernels.formats import Plain
from atom_kernels.platform import detect_platform
from atom_models import load_model, open_checkpoint
from atom_models.requirements import LayerWeights, layer_weights
from converted_gguf import write_gguf
from published_catalog import CHECKPOINTS
from quantized_checkpoints import PUBLISHED, write_quantized
from single_layers import is_packed
from tiny_models import make_tiny_llama

# DeepSeek's first layers: three that are dense, and two with experts.
LAYERS = 5


def of(folder: Path, quantization: str | None = None) -> dict[str, LayerWeights]:
    return {one.name: one for one in layer_weights(open_checkpoint(folder), quantization)}


def published(name: str, folder: Path) -> dict[str, LayerWeights]:
    checkpoint = CHECKPOINTS[name]
    cut = checkpoint if "gpt-oss" in name else checkpoint.first_layers(LAYERS)
    return of(cut.write(folder))


def test_layers_that_run_as_one_are_one_kind(tiny_llama: Path):
    found = of(tiny_llama)
    assert list(found) == [
        "model.embed_tokens",
        "model.layers.*.self_attn.{q_proj,k_proj,v_proj}",
        "model.layers.*.self_attn.o_proj",
        "model.layers.*.mlp.{gate_proj,up_proj}",
        "model.layers.*.mlp.down_proj",
        "lm_head",
        "norms and others",
    ]
    assert {one.count for name, one in found.items() if "layers" in name} == {2}
    assert {one.operator for name, one in found.items() if "proj" in name} == {"linear"}
    assert found["model.embed_tokens"].operator == "embedding"


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_bytes_are_those_that_a_loaded_model_holds(quantization: str | None, tiny_llama: Path):
    model = load_model(tiny_llama, quantization=quantization)
    plans = {layer._apply for layer in model.model.modules() if hasattr(layer, "_apply") and hasattr(layer, "_parts")}
    linears = [one for name, one in of(tiny_llama, quantization).items() if "proj" in name or name == "lm_head"]
    assert sum(one.num_bytes for one in linears) == sum(plan.weight_bytes for plan in plans)


def test_a_tied_head_adds_no_table(tiny_llama_tied: Path):
    found = of(tiny_llama_tied)
    assert found["lm_head"].stored == "the embedding's table"
    assert found["lm_head"].num_bytes < found["model.embed_tokens"].num_bytes


def test_rounding_shows_in_what_is_kept(tiny_llama: Path):
    found = of(tiny_llama, "int8")
    assert {one.held for name, one in found.items() if "proj" in name} == {"int8 per row"}
    assert {one.operator for name, one in found.items() if "proj" in name} == {"linear"}
    assert found["lm_head"].held == "float32"


def test_the_rule_that_decided_is_told(tmp_path: Path):
    found = published("Qwen/Qwen3-235B-A22B-FP8", tmp_path)
    q, router = found["model.layers.*.self_attn.{q_proj,k_proj,v_proj}"], found["model.layers.*.mlp.gate"]
    assert (q.stored, q.rule) == ("fp8 128x128", "as all of fp8")
    assert (router.stored, router.rule) == ("bfloat16", "left out by 'model.layers.*.mlp.gate'")
    assert found["lm_head"].rule == "left out by 'lm_head'"
    assert (found["model.embed_tokens"].rule, found["norms and others"].stored) == ("", "bfloat16")


def test_layers_of_one_kind_that_differ_are_apart(tiny_llama: Path, tmp_path: Path):
    """A config that leaves one layer out, and a file that follows it."""
    one = PUBLISHED["fp8 rows"]
    quantized, _ = write_quantized(tmp_path, tiny_llama, replace(one, skipped=(*one.skipped, "layers.1.mlp.down")))
    kinds = [kind for kind in layer_weights(open_checkpoint(quantized)) if kind.name.endswith("down_proj")]
    assert [(kind.count, kind.stored) for kind in kinds] == [(1, "fp8 per row"), (1, "float32")]
    assert "but stored as float32" in kinds[1].rule


def test_latents_and_experts_are_told_too(tmp_path: Path):
    found = published("deepseek-ai/DeepSeek-R1", tmp_path)
    latents = found["model.layers.*.self_attn.kv_b_proj"]
    assert (latents.operator, latents.stored, latents.count) == ("latent_attention", "fp8 128x128", LAYERS)
    experts = found["model.layers.*.mlp.experts"]
    assert (experts.operator, experts.stored, experts.count) == ("moe_experts", "fp8 128x128", LAYERS - 3)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_published_checkpoint_has_the_formats_that_it_says(name: str, tmp_path: Path):
    found = published(name, tmp_path)
    assert {one.stored for one in found.values() if "proj" in one.name or "experts" in one.name} == CHECKPOINTS[
        name
    ].formats
    tables = {one.stored for one in found.values() if one.name.endswith(("lm_head", "embed_tokens"))}
    assert tables == {"bfloat16"}


def test_formats_of_a_gguf_file_are_those_of_its_tensors(tmp_path: Path):
    folder = make_tiny_llama(tmp_path / "m")
    found = of(write_gguf(folder, tmp_path / "m.gguf", quant="Q4_0"))
    assert found["model.layers.*.mlp.down_proj"].stored == "Q4_0"
    # The file names no number format of the model: the machine chooses it for what is not packed.
    chosen = getattr(torch, detect_platform().preferred_dtype)
    assert found["model.embed_tokens"].held == Plain(chosen).name


def test_matrices_of_a_gguf_file_are_kept_packed_unless_plain_numbers_are_asked_for(tmp_path: Path):
    path = write_gguf(make_tiny_llama(tmp_path / "m"), tmp_path / "m.gguf", quant="Q4_0")
    context = load_model(path).context
    held = {asked: of(path, asked)["model.layers.*.mlp.down_proj"].held for asked in (None, "auto", "none")}
    packed = is_packed(load_model(path).model.model.layers[0].mlp.down_proj, context.platform)
    kept = "int4 per 32" if packed else Plain(context.dtype).name
    assert held == {None: kept, "auto": kept, "none": Plain(context.dtype).name}


def test_layers_that_run_as_one_tell_each_type_that_they_are_stored_in(tmp_path: Path):
    folder = make_tiny_llama(tmp_path / "m")
    found = of(write_gguf(folder, tmp_path / "m.gguf", quant="Q5_0", others={"attn_v": "Q8_0", "ffn_down": "Q8_0"}))
    told = {name: one.stored for name, one in found.items() if "v_proj" in name or "mlp" in name}
    assert told.pop("model.layers.*.mlp.down_proj") == "Q8_0"
    assert told.pop("model.layers.*.mlp.{gate_proj,up_proj}") == "Q5_0"
    assert set(told.values()) in ({"Q5_0 and Q8_0"}, {"Q8_0"})


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_without_weights_the_config_says_how_they_are_stored(tiny_llama: Path, tmp_path: Path, key: str):
    config = json.loads((tiny_llama / "config.json").read_text())
    config = {name: value for name, value in config.items() if "dtype" not in name}
    (tmp_path / "config.json").write_text(json.dumps(config | {key: "bfloat16"}))
    assert {one.stored for name, one in of(tmp_path).items() if name != "lm_head"} == {
        "bfloat16 (by the config: there are no weights)"
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert of(tmp_path)["model.layers.*.mlp.down_proj"].stored == "not known (there are no weights)"


def test_experts_tell_the_format_of_their_files(tiny_family, tmp_path: Path):
    folder = tmp_path / "m"
    shutil.copytree(tiny_family("qwen3_moe"), folder)
    (file,) = folder.glob("*.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    assert of(folder)["model.layers.*.mlp.experts"].stored == "bfloat16"
