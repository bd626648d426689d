"""Numbers for planning, from the config alone, against the model that is built."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.index import IndexProblem
from atom_kernels.attention.mla import MlaProblem
from atom_kernels.delta import DeltaNetProblem
from atom_kernels.native import native_unavailable
from atom_kernels.protocols import CacheFormat
from atom_kernels.protocols.collectives import SingleRank
from atom_models import (
    BuildContext,
    CheckpointError,
    UnsupportedArchitectureError,
    build_model,
    model_requirements,
    open_checkpoint,
    supported_architectures,
)
from atom_models.groups import Groups
from atom_models.layers import Experts
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.norms.wide_norm import WideRMSNorm
from atom_models.model import mixer_layers
from atom_models.requirements.parameters import count_parameters
from quantized_checkpoints import PUBLISHED, write_gpt_oss, write_quantized
from tiny_architectures import families, make_tiny
from tiny_models import make_tiny_llama

VARIANTS = {
    "grouped": {},
    "tied": {"tie": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32, "num_layers": 3},
    "one KV head": {"kv_heads": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_and_cache_bytes_are_those_of_the_built_model(tmp_path, variant):
    assert_needs_are_those_of_the_built_model(open_checkpoint(make_tiny_llama(tmp_path / "m", **VARIANTS[variant])))


@pytest.mark.parametrize("family", families(supported_architectures()))
@pytest.mark.parametrize("spelling", ["", "transformers"])
def test_they_are_so_for_every_family_in_both_spellings(tiny_family, family, spelling):
    assert_needs_are_those_of_the_built_model(open_checkpoint(tiny_family(family) / spelling))


@pytest.mark.parametrize("family", families(supported_architectures()))
def test_windows_are_those_of_the_built_model(tiny_family, family):
    checkpoint = open_checkpoint(tiny_family(family))
    layers = mixer_layers(build_model(checkpoint, BuildContext(dtype=torch.float32))).values()
    groups = model_requirements(checkpoint).cache_groups
    built = Counter(layer.problem.keeps for layer in layers)
    assert {group.spec: group.num_layers for group in groups} == dict(built)


def elements_per_token(problem):
    """Elements of keys and values, of an index key, of a latent with its rotated key, or of a whole state."""
    if isinstance(problem, IndexProblem):
        # A plan keeps it in bfloat16.
        return problem.head_dim / 2
    if isinstance(problem, MlaProblem):
        return problem.kv_lora_rank + problem.qk_rope_head_dim
    if isinstance(problem, DeltaNetProblem):
        # A plan keeps what the convolution saw in bfloat16.
        inputs = problem.channels * (problem.conv_width - 1) // 2
        return inputs + problem.num_value_heads * problem.key_dim * problem.value_dim
    return 2 * problem.num_kv_heads * problem.head_dim


def assert_needs_are_those_of_the_built_model(checkpoint):
    needs = model_requirements(checkpoint)
    model = build_model(checkpoint, BuildContext(dtype=torch.float32))
    parameters = sum(math.prod(e.shape) for layer in loadable(model) for e in expected_weights(layer).values())
    assert needs.num_parameters == parameters
    assert needs.weight_bytes["float32"] == 4 * parameters
    assert needs.weight_bytes["bfloat16"] == 2 * parameters
    caches = mixer_layers(model).values()
    assert needs.num_layers == len([layer for layer in caches if not isinstance(layer.problem, IndexProblem)])
    assert needs.kv_bytes_per_token[CacheFormat("float32")] == 4 * sum(
        elements_per_token(layer.problem) for layer in caches
    )


def test_rounded_linears_take_the_bytes_of_codes_and_scales(tmp_path):
    checkpoint = open_checkpoint(make_tiny_llama(tmp_path / "m", intermediate=160))
    needs = model_requirements(checkpoint)
    linears = 2 * (64 * 128 + 64 * 64 + 3 * 64 * 160)
    outputs = 2 * (128 + 64 + 2 * 160 + 64)
    assert needs.num_linear_parameters == linears
    rest = (needs.num_parameters - linears) * 2
    assert needs.weight_bytes["int8"] == needs.weight_bytes["fp8"] == rest + linears + 4 * outputs
    assert needs.weight_bytes["mxfp4"] == rest + linears // 2 + linears // 32
    assert needs.weight_bytes["int4"] == rest + linears // 2 + linears // 32 * (2 + 2)


def test_a_mixture_is_counted_without_a_list_of_its_experts_names(tiny_family):
    model = build_model(open_checkpoint(tiny_family("qwen3_moe")), BuildContext(dtype=torch.float32))
    assert count_parameters(model).idle
    assert [layer for layer in model.modules() if isinstance(layer, Experts) and layer._chosen is not None] == []


def test_a_rank_holds_the_part_of_a_norm_over_heads_that_its_heads_need(tiny_family):
    """The norms of q and k are cut in two with their heads; norms of hidden states are whole."""
    checkpoint = open_checkpoint(tiny_family("minimax_m2"))
    names = {"q_norm": 0, "k_norm": 0}
    context = BuildContext(groups=Groups(FirstOfTwo()))
    for layer in build_model(checkpoint, context).modules():
        if isinstance(layer, WideRMSNorm):
            (name,), (shape,) = (
                expected_weights(layer),
                [one.shape for weights in layer.weights() for one in weights.on_rank],
            )
            assert 2 * shape[0] == expected_weights(layer)[name].shape[0]
            names[name.split(".")[-2]] += 1
    assert all(names.values())


class FirstOfTwo(SingleRank):
    size = 2


def test_a_config_that_lacks_a_number_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(CheckpointError, match="config.json lacks vocab_size, which LlamaConfig needs"):
        model_requirements(open_checkpoint(tmp_path))


def test_an_unsupported_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unknown"]}))
    with pytest.raises(UnsupportedArchitectureError, match="Unknown is not supported"):
        model_requirements(open_checkpoint(tmp_path))


def test_rounded_experts_take_the_bytes_of_codes_and_scales(tmp_path):
    checkpoint = open_checkpoint(make_tiny("mixtral", tmp_path / "m", hidden_size=64, intermediate_size=96))
    needs, config = model_requirements(checkpoint), checkpoint.config
    experts = needs.num_layers * config["num_local_experts"] * 3 * 64 * 96
    assert experts < needs.num_linear_parameters < 2 * experts
    rest = (needs.num_parameters - needs.num_linear_parameters) * 2
    assert needs.weight_bytes["mxfp4"] == rest + needs.num_linear_parameters * 17 // 32


@pytest.mark.parametrize("family", ["deepseek_v2-lite", "qwen3_next"])
def test_what_a_layer_never_rounds_is_not_counted_as_rounded(family, tmp_path):
    """Latent attention absorbs a matrix; routers, gates of shared experts and convolutions stay plain."""
    checkpoint = open_checkpoint(make_tiny(family, tmp_path / "m"))
    model = build_model(checkpoint, BuildContext(dtype=torch.bfloat16))
    names = ("kv_b_proj", "embed_tokens", "lm_head", "mlp.gate.", "shared_expert_gate", "conv1d")
    rounded = [one for one in loadable(model) if not any(name in " ".join(expected_weights(one)) for name in names)]
    on_rank = [one for layer in rounded for weights in layer.weights() for one in weights.on_rank]
    numbers = sum(one.count * math.prod(one.shape) for one in on_rank if len(one.shape) > 1)
    assert model_requirements(checkpoint).num_linear_parameters == numbers


def test_a_matrix_that_latent_attention_absorbs_takes_the_bytes_of_plain_numbers_however_it_is_stored(tmp_path):
    plain, tiles = make_tiny("deepseek_v2-lite", tmp_path / "plain"), PUBLISHED["fp8 tiles"]
    sizes = []
    for name, published in (("stored", tiles), ("left out", replace(tiles, skipped=(*tiles.skipped, "kv_b_proj")))):
        (tmp_path / name).mkdir()
        needs = model_requirements(open_checkpoint(write_quantized(tmp_path / name, plain, published)[0]))
        sizes.append(needs.weight_bytes["fp8"])
    assert sizes[0] == sizes[1]


def test_a_mixture_stays_as_it_is_published_where_a_kernel_reads_its_experts(tmp_path, monkeypatch):
    plain = make_tiny("gpt_oss", tmp_path / "plain", hidden_size=96, intermediate_size=64)
    needs = model_requirements(open_checkpoint(write_gpt_oss(tmp_path, plain)[0]))
    if not native_unavailable("moe_quantized"):
        assert (needs.held_format(None), needs.why_not_kept(None)) == ("mxfp4", None)
    monkeypatch.setenv("ATOM_DISABLE_NATIVE", "1")
    assert needs.held_format(None) == "bfloat16"
    assert needs.why_not_kept(None) == "no kernel there reads experts that are stored as mxfp4"


def test_a_mixture_whose_experts_no_kernel_reads_takes_the_memory_of_plain_numbers(tmp_path):
    plain = make_tiny("qwen3_moe", tmp_path / "plain", moe_intermediate_size=40)
    needs = model_requirements(open_checkpoint(write_quantized(tmp_path, plain, PUBLISHED["fp8 tiles"])[0]))
    assert needs.held_format(None) == "bfloat16"
