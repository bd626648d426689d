"""Fields of `config.json` that every family has: what they change, and what they are where they are left out."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom_models import CheckpointError, architectures, load_model
from atom_models.architectures import registry
from atom_models.architectures.fine_grained_moe import FineGrainedMoEConfig
from atom_models.architectures.qwen_hybrid import QwenHybridConfig
from atom_models.config.reading import read_config
from tiny_architectures import FAMILIES, make_tiny, reference_model

pytestmark = pytest.mark.usefixtures("quiet_transformers")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama: epsilon": ("llama", {"rms_norm_eps": 0.2}),
    "llama: another activation": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama: a head of another size": ("llama", {"head_dim": 24, "num_key_value_heads": 1}),
    "qwen2: epsilon": ("qwen2", {"rms_norm_eps": 0.2}),
    "qwen3: epsilon of heads too": ("qwen3", {"rms_norm_eps": 0.2}),
    "gemma3: epsilon of all norms": ("gemma3", {"rms_norm_eps": 0.2}),
    "gemma3: another scale of scores": ("gemma3", {"query_pre_attn_scalar": 3}),
    "gemma3: another activation": ("gemma3", {"hidden_activation": "silu"}),
    "qwen3_moe: epsilon": ("qwen3_moe", {"rms_norm_eps": 0.2}),
    "qwen3_moe: a window in all layers": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 9}),
    "mixtral: epsilon": ("mixtral", {"rms_norm_eps": 0.2}),
    "mixtral: a window": ("mixtral", {"sliding_window": 9}),
    "minimax_m2: epsilon": ("minimax_m2", {"rms_norm_eps": 0.2}),
    "minimax_m2: all of a head turns": (
        "minimax_m2",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    ),
    "glm4_moe: epsilon": ("glm4_moe", {"rms_norm_eps": 0.2}),
    "gpt_oss: epsilon": ("gpt_oss", {"rms_norm_eps": 0.2}),
}
# A published config of the family states them, whatever they are; transformers has those of one model as its defaults.
ALWAYS_STATED = {
    "max_position_embeddings",
    "num_key_value_heads",
    "rms_norm_eps",
    "sliding_window",
    "rope_parameters",
    "layer_types",
    "mlp_layer_types",
    "mlp_only_layers",
    "q_lora_rank",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "first_k_dense_replace",
}
# What is done to experts and their scores only where a config says so, and the value with which nothing is.
NEUTRAL = {
    "n_shared_experts": 0,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
}
ONE_OF_EACH = {family.architecture: family for family in FAMILIES.values()}


def config_class_of(architecture: str) -> Any:
    modules = [
        importlib.import_module(f"atom_models.architectures.{m.name}")
        for m in pkgutil.iter_modules(architectures.__path__)
    ]
    return next(getattr(module, architecture) for module in modules if hasattr(module, architecture)).config_class


@pytest.mark.parametrize("case", CASES)
def test_a_field_changes_what_it_changes_in_transformers(case: str, tmp_path: Path):
    family, overrides = CASES[case]
    folder, draw = make_tiny(family, tmp_path, **overrides), random.Random(1)
    tokens = [draw.randrange(3, 384) for _ in range(40)]
    [ours] = load_model(folder, progress=False).logits([tokens])
    with torch.inference_mode():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    assert (ours - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


def test_scores_of_gemma_are_capped_where_the_config_says_so(tmp_path: Path):
    folder, tokens = make_tiny("gemma3", tmp_path, attn_logit_softcapping=0.5), list(range(5, 45))
    theirs = reference_model(folder)
    theirs.set_attn_implementation("eager")  # transformers caps in this one alone, and where it is told to
    [ours] = load_model(folder, progress=False).logits([tokens])
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens]), softcap=0.5).logits[0]
    assert (ours - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@pytest.mark.parametrize("architecture", ONE_OF_EACH)
def test_a_field_that_is_left_out_is_what_transformers_takes(architecture: str):
    theirs = transformers.AutoConfig.for_model(ONE_OF_EACH[architecture].model_type)
    for field in dataclasses.fields(config_class_of(architecture)):
        if field.name in ALWAYS_STATED or field.default in (dataclasses.MISSING, None):
            continue
        assert field.default == getattr(theirs, field.name, field.default), field.name


def test_what_is_left_out_is_not_done_to_experts():
    assert {field.name: field.default for field in dataclasses.fields(FineGrainedMoEConfig)}.items() >= NEUTRAL.items()


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_two_names(name: str, tmp_path: Path):
    config = json.loads((make_tiny("qwen3_moe", tmp_path) / "config.json").read_text())
    del config["num_experts"]
    assert read_config(config_class_of("Qwen3MoeForCausalLM"), {**config, name: 7}).num_experts == 7


def test_heads_of_keys_and_their_size_follow_from_those_of_queries(tmp_path: Path):
    folder = make_tiny("llama", tmp_path, num_key_value_heads=4)
    path = folder / "config.json"
    before = load_model(folder, progress=False).logits([[5, 6, 7]])[0]
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in ("num_key_value_heads", "head_dim")}))
    assert torch.equal(load_model(folder, progress=False).logits([[5, 6, 7]])[0], before)


@dataclass(frozen=True)
class Fields:
    """A config with a field whose null means something, and others."""

    size: int
    window: int | None = dataclasses.field(default=5, metadata={"null": None})
    norm_eps: float = 1e-6
    rate: float = 0.5
    other: int = dataclasses.field(default=7, metadata={"also": ("older", "oldest")})
    num_attention_heads: int = 4
    num_key_value_heads: int = 2


def test_null_is_a_value_of_the_fields_that_say_so_and_the_default_of_others():
    assert read_config(Fields, {"size": 3}) == Fields(3)
    assert read_config(Fields, {"size": 3, "window": None, "rate": None, "other": None}) == Fields(3, window=None)
    assert read_config(Fields, {"size": 3, "window": 9}) == Fields(3, window=9)
    assert read_config(Fields, {"size": 3, "oldest": 1}).other == 1
    assert read_config(Fields, {"size": 3, "oldest": 1, "older": 2}).other == 2
    assert read_config(Fields, {"size": 3, "other": 0, "older": 2}).other == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "config.json lacks size, which Fields needs"),
        ({"size": None}, "config.json lacks size, which Fields needs"),
        ({"size": True}, "config.json: size is True, not an integer"),
        ({"size": 2.5}, "config.json: size is 2.5, not an integer"),
        ({"size": 1, "rate": "x"}, "config.json: rate is 'x', not a number"),
        ({"size": 1, "rate": math.inf}, "config.json: rate is inf; it must be finite"),
        ({"size": 1, "norm_eps": 0.0}, "config.json: norm_eps is 0.0; it must be finite"),
        ({"size": 1, "norm_eps": None}, "config.json: norm_eps is null; it must be a number above 0, such as 1e-06"),
        (
            {"size": 1, "num_attention_heads": 5, "num_key_value_heads": 2},
            "config.json: num_key_value_heads is 2, which does not divide num_attention_heads, 5: each head of keys "
            "and values serves as many others",
        ),
    ],
)
def test_a_field_that_cannot_be_is_told_with_its_value(given, message):
    with pytest.raises(CheckpointError) as caught:
        read_config(Fields, given)
    assert str(caught.value).startswith(message)


WORDS = {value for name, value in vars(registry).items() if name.isupper() and isinstance(value, str)}


@pytest.mark.parametrize("name", registry.supported_architectures())
def test_an_architecture_is_described_in_words_that_lists_know(name):
    found = registry.describe_architecture(name)
    assert isinstance(found.models, str)
    assert found.models[0].isupper()
    assert set(found.features) <= WORDS
    assert len(set(found.features)) == len(found.features)
    assert found.published_as in ("bfloat16", "fp8", "mxfp4", "compressed-tensors")
    assert registry.find_architecture(name).__module__ == f"atom_models.architectures.{found.module}"
    assert registry.keeps_states(name) is found.keeps_states is (registry.GATED_DELTA_NET in found.features)
    assert found.has_prediction_layers is (registry.PREDICTION_LAYERS in found.features)


def test_what_is_no_architecture_here_is_told_with_the_nearest():
    assert registry.Architecture("m", "M") == registry.Architecture("m", "M", (), "bfloat16")
    assert not registry.keeps_states("Unknown")
    assert len(registry.other_modalities(dict.fromkeys(registry._OTHER_MODALITIES, 0))) == 11
    assert registry.other_modalities({"vision_config": None, "audio_config": {}}) == ("audio_config",)
    supported = ", ".join(registry.supported_architectures())
    with pytest.raises(registry.UnsupportedArchitectureError) as caught:
        registry.check_architecture("Qwen4ForCausalLM")
    start = f"the architecture Qwen4ForCausalLM is not supported; supported: {supported}. Use a model of one of these."
    assert str(caught.value) in {f"{start} The nearest is Qwen{n}ForCausalLM." for n in (2, 3)}
    with pytest.raises(registry.UnsupportedArchitectureError) as caught:
        registry.check_architecture("Zzz")
    assert str(caught.value).endswith("Use a model of one of these.")
    with pytest.raises(registry.UnsupportedArchitectureError) as caught:
        registry.check_architecture("MistralForConditionalGeneration", {"vision_config": {}})
    assert str(caught.value) == (
        "the architecture MistralForConditionalGeneration is multimodal (config.json has vision_config) and is not "
        "supported: this version runs text models alone. Use a text-only checkpoint such as one of MistralForCausalLM; "
        f"supported: {supported}."
    )


def test_every_fourth_layer_of_a_hybrid_has_attention_unless_its_config_names_them():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 512, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}

    def kinds(num_layers: int, **fields: Any) -> list[bool]:
        config = read_config(QwenHybridConfig, {**sizes, "num_hidden_layers": num_layers, **fields})
        return [config.has_attention(layer) for layer in range(num_layers + 2)]

    assert kinds(8) == [False, False, False, True] * 2 + [
        True,
        True,
    ]  # behind the last one further tokens are predicted
    assert kinds(3, full_attention_interval=2) == [False, True, False, True, True]
    assert kinds(2, layer_types=["full_attention", "linear_attention"]) == [True, False, True, True]
    with pytest.raises(ValueError, match="layer_types has 'other' for layer 0; allowed are full_attention and linear_"):
        kinds(1, layer_types=["other"])
