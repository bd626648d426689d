"""Folders that PEFT wrote: what is read of them, and what is refused, by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from atom_models.adapters.adapter_config import WEIGHTS
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.reading import read_adapter
from tiny_adapters import make_adapter, merge

PROJECTION = "model.layers.0.self_attn.q_proj"
OF_Q = f"base_model.model.{PROJECTION}."


def linears_of(base):
    """The shapes of all matrices of a checkpoint's layers."""
    weights = load_file(base / "model.safetensors")
    return {
        name.removesuffix(".weight"): weight.shape[::-1]
        for name, weight in weights.items()
        if "proj" in name and weight.ndim == 2
    }


def read(folder, base, max_rank=16):
    return read_adapter(folder, linears_of(base), max_rank=max_rank)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 6}, "ranks": {"q_proj": 6}, "alpha_pattern": {"0.mlp.up_proj": 3}},
        {"use_rslora": True, "ranks": {"down_proj": 2}, "alpha_pattern": {"down_proj": 9.5}},
    ],
    ids=["plain", "by the root", "patterns", "all of it"],
)
def test_the_matrices_are_those_by_which_merged_weights_differ(tiny_llama, tmp_path, config):
    folder = make_adapter(tmp_path / "adapter", tiny_llama, **config)
    merged = load_file(merge(tmp_path / "merged", tiny_llama, folder) / "model.safetensors")
    plain, adapter = load_file(tiny_llama / "model.safetensors"), read(folder, tiny_llama)
    assert adapter.matrices.keys() == linears_of(tiny_llama).keys()
    for module, low_rank in adapter.matrices.items():
        change = merged[f"{module}.weight"] - plain[f"{module}.weight"]
        assert np.allclose((low_rank.b @ low_rank.a).numpy(), change, atol=1e-5), module


@pytest.mark.parametrize("prefix", ["model.language_model.layers", "language_model.model.layers", "model.layers"])
@pytest.mark.parametrize("own", ["model.layers", "language_model.model.layers"])
def test_a_decoder_is_found_by_each_name_that_transformers_had_for_it(tiny_llama, tmp_path, own, prefix):
    def rename(tensors):
        for name in list(tensors):
            tensors[name.replace("model.layers", prefix)] = tensors.pop(name)

    full = f"{prefix}.0.self_attn.q_proj"
    folder = make_adapter(tmp_path, tiny_llama, modules=["q_proj"], alpha_pattern={full: 80}, change=rename)
    linears = {name.replace("model.layers", own): shape for name, shape in linears_of(tiny_llama).items()}
    found = read_adapter(folder, linears, max_rank=16).matrices
    assert set(found) == {f"{own}.{layer}.self_attn.q_proj" for layer in range(2)}
    first, tensors = found[f"{own}.0.self_attn.q_proj"], load_file(folder / WEIGHTS)
    assert np.allclose(first.b.numpy(), 20 * tensors[f"base_model.model.{full}.lora_B.weight"])


def test_one_linear_by_two_names_is_refused(tiny_llama, tmp_path):
    def add(tensors):
        for name in list(tensors):
            tensors[name.replace("model.layers", "language_model.model.layers")] = tensors[name]

    folder = make_adapter(tmp_path, tiny_llama, modules=["q_proj"], change=add)
    with pytest.raises(AdapterError, match="are two names of one linear"):
        read(folder, tiny_llama)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [("q_proj", True), ("0.self_attn.q_proj", True), (r"layers\.[0-9]\.self_attn\.q_proj", True), ("proj", False)],
)
def test_a_pattern_is_a_regular_expression_for_the_end_of_a_name(tiny_llama, tmp_path, pattern, fits):
    folder = make_adapter(tmp_path, tiny_llama, modules=["q_proj"], alpha_pattern={pattern: 80}, lora_alpha=8)
    small = make_adapter(tmp_path / "small", tiny_llama, modules=["q_proj"], lora_alpha=8)
    factor = read(folder, tiny_llama).matrices[PROJECTION].b / read(small, tiny_llama).matrices[PROJECTION].b
    assert torch.allclose(factor, torch.full_like(factor, 10.0 if fits else 1.0))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; served is LORA alone"),
        ({"use_dora": True}, "use_dora is set: DoRA scales"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is set"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters is set: matrices of experts"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base model's weights"),
        ({"r": 0}, "r is 0; it must be a whole number above 0"),
        ({"r": 17}, "r is 17, above max_lora_rank 16"),
        ({"r": "8"}, "r is '8'"),
        ({"lora_alpha": -1}, "lora_alpha is -1; it must be above 0"),
        ({"rank_pattern": ["q_proj"]}, r"rank_pattern is \['q_proj'\]; it must be an object"),
        ({"rank_pattern": {"q_proj": True}}, "rank_pattern has the number True"),
        ({"alpha_pattern": {"(": 1}}, r"alpha_pattern has the pattern '\(', which is no regular expression"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "allowed are 200 characters, of which at most 3 repeat"),
        ({"alpha_pattern": {".*.*.*.*x": 1}}, "allowed are 200 characters, of which at most 3 repeat"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(tiny_llama, tmp_path, config, reason):
    folder = make_adapter(tmp_path, tiny_llama, **config)
    with pytest.raises(AdapterError, match=reason) as refused:
        read(folder, tiny_llama)
    assert str(folder / "adapter_config.json") in str(refused.value)


def renamed(old, new):
    def change(tensors):
        tensors[new] = tensors.pop(old)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(OF_Q + "lora_B.weight"), f"{PROJECTION} has lora_A alone"),
        (renamed(OF_Q + "lora_A.weight", OF_Q + "lora_magnitude_vector"), "is neither A nor B of a linear"),
        (renamed(OF_Q + "lora_A.weight", "base_model.model.lm_head.lora_A.weight"), "lm_head takes no adapters"),
        (
            renamed(OF_Q + "lora_A.weight", "base_model.model.model.layers.0.mlp.experts.3.w1.lora_A.weight"),
            "is of experts, whose matrices take no adapters",
        ),
        (
            renamed(OF_Q + "lora_A.weight", "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"),
            r"no linear model\.layers\.9\.self_attn\.q_proj that takes adapters; those that do are called down_proj",
        ),
        (
            lambda tensors: tensors.update({OF_Q + "lora_A.weight": np.zeros((4, 63), np.float32)}),
            rf"lora_A of {PROJECTION} has the shape \[4, 63\]; the model and the rank .* make it \[4, 64\]",
        ),
        (
            lambda tensors: tensors.update({OF_Q + "lora_B.weight": np.zeros((64, 5), np.float32)}),
            rf"lora_B of {PROJECTION} has the shape \[64, 5\]",
        ),
        (
            lambda tensors: tensors.update({OF_Q + "lora_A.weight": np.zeros((4, 64), np.int8)}),
            f"lora_A of {PROJECTION} is torch.int8; allowed are float32",
        ),
        (
            lambda tensors: tensors[OF_Q + "lora_A.weight"].fill(np.nan),
            f"the matrices of {PROJECTION} hold numbers that are not finite",
        ),
        (lambda tensors: tensors.clear(), "it holds no tensors"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(tiny_llama, tmp_path, change, reason):
    folder = make_adapter(tmp_path, tiny_llama, change=change)
    with pytest.raises(AdapterError, match=reason) as refused:
        read(folder, tiny_llama)
    assert str(folder / WEIGHTS) in str(refused.value)


def test_a_rank_of_one_module_above_the_largest_is_refused(tiny_llama, tmp_path):
    folder = make_adapter(tmp_path, tiny_llama, ranks={"up_proj": 9})
    with pytest.raises(AdapterError, match=r"the rank of model\.layers\.0\.mlp\.up_proj is 9, above max_lora_rank 8"):
        read(folder, tiny_llama, max_rank=8)


def test_a_damaged_file_is_refused(tiny_llama, tmp_path):
    folder = make_adapter(tmp_path, tiny_llama)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8])
    with pytest.raises(AdapterError, match="is not a usable safetensors file"):
        read(folder, tiny_llama)


def test_pickled_weights_are_refused(tiny_llama, tmp_path):
    folder = make_adapter(tmp_path, tiny_llama)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterError, match=r"adapter_model\.bin is pickled, which is never loaded"):
        read(folder, tiny_llama)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(tiny_llama, tmp_path, text):
    folder = make_adapter(tmp_path, tiny_llama)
    (folder / "adapter_config.json").write_text(text)
    with pytest.raises(AdapterError, match=r"adapter_config\.json: it (cannot be read|must be an object)"):
        read(folder, tiny_llama)


def test_a_folder_without_an_adapter_is_refused(tiny_llama, tmp_path):
    with pytest.raises(AdapterError, match=r"the file is missing: an adapter is a folder with adapter_config\.json"):
        read(tmp_path, tiny_llama)
    with pytest.raises(AdapterError, match="is no folder"):
        read(tmp_path / "absent", tiny_llama)


def test_numbers_of_a_config_may_be_left_out_as_peft_does(tiny_llama, tmp_path):
    folder = make_adapter(tmp_path, tiny_llama, rank=8, modules=["q_proj"])
    written = json.loads((folder / "adapter_config.json").read_text())
    for field in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias"):
        del written[field]
    (folder / "adapter_config.json").write_text(json.dumps(written))
    b = load_file(folder / WEIGHTS)[OF_Q + "lora_B.weight"]
    assert np.array_equal(read(folder, tiny_llama).matrices[PROJECTION].b.numpy(), b)
