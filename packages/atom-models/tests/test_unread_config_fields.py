"""Fields of `config.json` that a model does not have: refused, warned of or known to be without effect."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom_models import BuildContext, CheckpointError, build_model, open_checkpoint, supported_architectures
from atom_models.architectures.registry import find_architecture
from atom_models.checkpoint import normalize_config
from atom_models.config.other_fields import refuse_other_models, unknown_fields
from atom_models.config.reading import read_config
from published_configs import FOLDER, NAMES
from tiny_architectures import FAMILIES
from tiny_models import make_tiny_llama

# Fields of published configs that `transformers` does not write; those that the classes read are left out.
PUBLISHED_FIELDS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"pretraining_tp": 1, "is_llama_config": True, "rope_interleaved": False, "use_cache": True},
    "Qwen2ForCausalLM": {"use_mrope": False, "max_window_layers": 28, "sliding_window": None},
    "MiniMaxM2ForCausalLM": {
        "attn_type_list": [1, 1],
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0,
        "mlp_intermediate_size": 8192,
        "mtp_transformer_layers": 1,
        "num_mtp_modules": 3,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
        "use_mtp": True,
        "use_qk_norm": True,
    },
    "DeepseekV3ForCausalLM": {"ep_size": 1, "seq_aux": True, "aux_loss_alpha": 0.001, "scoring_func": "sigmoid"},
    "DeepseekV2ForCausalLM": {"ep_size": 1, "seq_aux": True, "aux_loss_alpha": 0.001, "scoring_func": "softmax"},
    "JinaEmbeddingsV3Model": {
        "model_type": "xlm-roberta",
        "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0,
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        "emb_pooler": None,
        "load_trained_adapters": True,
        "lora_adaptations": ["retrieval.query", "text-matching"],
        "lora_alpha": 1,
        "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False,
        "lora_rank": 4,
        "matryoshka_dimensions": [32, 1024],
        "output_past": True,
        "task_instructions": {"retrieval.query": "Represent the query: "},
        "truncate_dim": None,
        "use_flash_attn": True,
        "use_reg_tokens": False,
    },
    "Gemma3ForCausalLM": {"cache_implementation": "hybrid", "attn_logit_softcapping": None, "hidden_act": "gelu"},
}

REFUSED = [
    ("JinaEmbeddingsV3Model", {"emb_pooler": "mean"}),
    ("JinaEmbeddingsV3Model", {"use_reg_tokens": True}),
    ("Qwen2ForCausalLM", {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}}),
    ("Qwen2ForCausalLM", {"use_mrope": True}),
    ("Qwen2ForCausalLM", {"is_causal": False}),
    ("LlamaForCausalLM", {"attn_logit_softcapping": 50.0}),
    ("LlamaForCausalLM", {"logits_scaling": 8.0}),
    ("LlamaForCausalLM", {"embedding_multiplier": 12.0}),
    ("LlamaForCausalLM", {"clip_qkv": 8.0}),
    ("LlamaForCausalLM", {"no_rope_layers": [1, 1, 1, 0]}),
    ("LlamaForCausalLM", {"rope_interleaved": True}),
    ("LlamaForCausalLM", {"use_qk_norm": True}),
    ("LlamaForCausalLM", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("LlamaForCausalLM", {"rope_parameters": {"short_mscale": 1.1}}),
    ("MistralForCausalLM", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}),
    ("Qwen3ForCausalLM", {"use_qk_norm": False}),
    ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}),
    ("DeepseekV2ForCausalLM", {"scoring_func": "sigmoid"}),
    ("Glm4MoeForCausalLM", {"topk_method": "greedy"}),
    ("MiniMaxM2ForCausalLM", {"attn_type_list": [0, 1]}),
    ("MiniMaxM2ForCausalLM", {"shared_intermediate_size": 512}),
    ("MixtralForCausalLM", {"swiglu_limit": 7.0}),
]

# Models that are not here have these fields, as their publishers write them.
PARTS_OF_OTHER_MODELS: dict[str, Any] = {
    "alibi": True,
    "attention_chunk_size": 8192,
    "attention_multiplier": 0.0078,
    "attn_logit_softcap": 30.0,
    "attn_temperature_tuning": True,
    "attn_type_list": [1, 0],
    "final_logit_softcap": 30.0,
    "final_logit_softcapping": 30.0,
    "index_topk": 2048,
    "layer_scale": True,
    "layer_scale_init_value": 1e-4,
    "lm_head_multiplier": 0.5,
    "logit_scale": 0.0625,
    "logits_soft_cap": 30.0,
    "parallel_attn": True,
    "qk_layernorm": True,
    "residual_multiplier": 0.22,
    "rope_interleave": True,
    "rope_parameters": {"long_mscale": 1.1},
    "scale_depth": 1.4,
    "scale_emb": 12,
    "swiglu_limit": 7.0,
    "use_bidirectional_attention": True,
    "use_layer_scale": True,
    "use_parallel_residual": True,
    "zero_centered_gamma": True,
}
# What stands in configs of models that have no such part.
NO_SUCH_PART: dict[str, Any] = {
    "alibi": False,
    "attn_temperature_tuning": False,
    "attn_type_list": [1, 1],
    "dual_chunk_attention_config": {},
    "embedding_multiplier": 1.0,
    "is_causal": True,
    "layer_scale": False,
    "layer_types": ["full_attention", "full_attention"],
    "lm_head_multiplier": 1.0,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "no_rope_layers": [1, True],
    "parallel_attn": False,
    "qk_layernorm": False,
    "residual_multiplier": 1.0,
    "rope_interleave": False,
    "rope_interleaved": False,
    "scale_emb": 1,
    "use_bidirectional_attention": False,
    "use_layer_scale": False,
    "use_mrope": False,
    "use_parallel_residual": False,
    "use_qk_norm": False,
    "zero_centered_gamma": False,
}


# Types of models that write no text.
_MODEL_TYPES = {"Bert": "bert", "ModernBert": "modernbert", "Qwen3": "qwen3", "Roberta": "roberta"}
_MODEL_TYPES |= {"CLIP": "clip_text_model", "Siglip": "siglip_text_model", "XLMRoberta": "xlm-roberta"}
_MODEL_TYPES |= {"JinaEmbeddingsV3": "jina_embeddings_v3"}


def class_of(architecture: str) -> Any:
    found: Any = find_architecture(architecture)
    return found.config_class


def defaults_of(architecture: str) -> dict[str, Any]:
    of_families = {family.architecture: family.model_type for family in FAMILIES.values()}
    model_type = of_families.get(architecture) or _MODEL_TYPES[architecture.partition("For")[0].removesuffix("Model")]
    return normalize_config(json.loads(transformers.AutoConfig.for_model(model_type).to_json_string(use_diff=False)))


@pytest.mark.parametrize("architecture", supported_architectures())
def test_every_field_that_transformers_gives_an_architecture_is_known(architecture: str):
    assert unknown_fields(class_of(architecture), defaults_of(architecture)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_published_configs_are_read_without_a_warning(name: str):
    config = normalize_config(json.loads((FOLDER / f"{name}.json").read_text()))
    cls, config = class_of(config["architectures"][0]), config.get("text_config", config)
    read_config(cls, config)
    assert unknown_fields(cls, config) == ()


@pytest.mark.parametrize("architecture", PUBLISHED_FIELDS)
def test_fields_that_publishers_add_and_that_change_nothing_pass(architecture: str):
    cls, config = class_of(architecture), normalize_config(defaults_of(architecture) | PUBLISHED_FIELDS[architecture])
    refuse_other_models(cls, config)
    assert unknown_fields(cls, config) == ()


@pytest.mark.parametrize(("architecture", "fields"), REFUSED, ids=lambda value: str(value)[:60])
def test_fields_that_would_change_the_results_are_refused(architecture: str, fields: dict[str, Any]):
    name = next(iter(fields))
    name = ".".join([name, *fields[name]]) if name == "rope_parameters" else name
    config = normalize_config(defaults_of(architecture) | fields)
    with pytest.raises(CheckpointError, match=rf"{name} is .*, which would change the results .* it can be null"):
        read_config(class_of(architecture), config)


@pytest.mark.parametrize("name", PARTS_OF_OTHER_MODELS)
def test_a_llama_with_a_part_of_another_model_is_refused(name: str):
    with pytest.raises(CheckpointError, match=rf"{name}[a-z_.]* is "):
        refuse_other_models(class_of("LlamaForCausalLM"), {name: PARTS_OF_OTHER_MODELS[name]})


def test_a_llama_may_say_that_it_has_no_such_part():
    llama = class_of("LlamaForCausalLM")
    refuse_other_models(llama, NO_SUCH_PART)
    assert unknown_fields(llama, NO_SUCH_PART) == ()


def test_an_unknown_field_that_is_set_gets_a_line_with_its_name_and_its_file(tmp_path: Path, caplog):
    folder = make_tiny_llama(tmp_path / "m", twirl_factor=3, other=None, off=False, nothing=[], wobble={"a": 1})
    with caplog.at_level(logging.WARNING):
        build_model(open_checkpoint(folder), BuildContext(dtype=torch.float32))
    lines = [record.getMessage() for record in caplog.records if "config.json sets" in record.getMessage()]
    assert [line.split("config.json sets ")[1].split(",")[0] for line in lines] == ["twirl_factor", "wobble"]
    assert all(line.startswith(str(folder)) for line in lines)


def test_an_unknown_parameter_of_the_rotation_gets_one_too(tmp_path: Path):
    rope = {"rope_type": "default", "rope_theta": 1e4, "twist": 2.0}
    config = open_checkpoint(make_tiny_llama(tmp_path / "m", rope=rope)).config
    assert unknown_fields(class_of("LlamaForCausalLM"), config) == ("rope_parameters.twist",)


def test_parameters_of_a_rotation_for_each_kind_of_layer_are_looked_at():
    ropes = {"full_attention": {"rope_type": "default", "twist": 2.0}, "sliding_attention": {"short_mscale": 2.0}}
    config = defaults_of("Gemma3ForCausalLM") | {"rope_parameters": ropes}
    assert unknown_fields(class_of("Gemma3ForCausalLM"), config) == ("rope_parameters.full_attention.twist",)
    with pytest.raises(CheckpointError, match=r"rope_parameters.sliding_attention.short_mscale is 2.0"):
        read_config(class_of("Gemma3ForCausalLM"), config)


def test_a_refusal_names_the_folder(tmp_path: Path):
    folder = make_tiny_llama(tmp_path / "m", logit_scale=0.1)
    with pytest.raises(CheckpointError, match=rf"{folder}: config.json: logit_scale is 0.1, .* null or 1"):
        build_model(open_checkpoint(folder), BuildContext(dtype=torch.float32))
