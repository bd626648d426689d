"""Fields of `config.json` that no config class has: what is done about each. Torch-free.

A config class says more in two class variables: `always`, fields of which its model has one value (or several that
come to the same), and `unread`, fields that its family writes and that change nothing. `rope_follows` has those of
`rope_parameters` that its model follows, and others cannot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

# Read outside the config classes: the checkpoint, the rotation, the quantization, prediction layers, vectors, scores.
_READ_ELSEWHERE = """
    architectures model_type dtype torch_dtype quantization_config text_config rope_parameters max_position_embeddings
    max_sequence_length n_positions partial_rotary_factor original_max_position_embeddings rotary_dim bos_token_id
    eos_token_id num_nextn_predict_layers num_mtp_layers num_mtp_modules matryoshka_dimensions is_matryoshka
    sentence_transformers sbert_ce_default_activation_function classifier_from_token
"""
# What wrote the file, training, ways to compute the same numbers, and what other classes of transformers read.
_WITHOUT_EFFECT = """
    _name_or_path name_or_path auto_map transformers_version id2label label2id problem_type task_specific_params
    finetuning_task tokenizer_class return_dict output_attentions output_hidden_states torchscript use_bfloat16
    tf_legacy_loss pruned_heads chunk_size_feed_forward use_cache cache_implementation _attn_implementation
    attn_implementation _attn_implementation_autoset _attn_implementation_internal _experts_implementation
    _from_model_config _commit_hash pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id num_labels vocab_file
    initializer_range initializer_factor attention_dropout hidden_dropout attn_pdrop resid_pdrop embd_pdrop dropout
    classifier_dropout layerdrop gradient_checkpointing output_router_logits router_aux_loss_coef router_jitter_noise
    router_z_loss_coef aux_loss_alpha seq_aux pretraining_tp ep_size unsloth_version unsloth_fixed
    use_flash_attn use_flash_attention _flash_attn_2_enabled is_llama_config transformers.js_config
"""
# Fields of other models, with the values with which they change nothing; null is always one.
_CHANGES_RESULTS: Mapping[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attn_logit_softcap": (),
    "attn_logit_softcapping": (),
    "attn_temperature_tuning": (False, 0),
    "attn_type_list": (1,),
    "clip_qkv": (),
    "dual_chunk_attention_config": ({},),
    "embedding_multiplier": (1,),
    "final_logit_softcap": (),
    "final_logit_softcapping": (),
    "index_topk": (),
    "is_causal": (True,),
    "layer_scale": (False,),
    "layer_scale_init_value": (),
    "layer_types": ("full_attention",),
    "lm_head_multiplier": (1,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "logits_soft_cap": (),
    "no_rope_layers": (1, True),
    "parallel_attn": (False,),
    "qk_layernorm": (False,),
    "residual_multiplier": (1,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "scale_depth": (),
    "scale_emb": (1,),
    "swiglu_limit": (),
    "use_bidirectional_attention": (False,),
    "use_layer_scale": (False,),
    "use_mrope": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "zero_centered_gamma": (False,),
}
# The same for `rope_parameters`. Sections of a rotation differ for images alone.
_ROPE_CHANGES_RESULTS: Mapping[str, tuple[Any, ...]] = {
    "llama_4_scaling_beta": (),
    "long_mscale": (),
    "short_mscale": (),
}
_ROPE_READ = """
    rope_type type rope_theta factor partial_rotary_factor original_max_position_embeddings low_freq_factor
    high_freq_factor beta_fast beta_slow truncate mscale mscale_all_dim attention_factor long_factor short_factor
    mrope_section mrope_interleaved finetuned max_position_embeddings
"""


def refuse_other_models(cls: type[Any], config: Mapping[str, Any]) -> None:
    """Raise for a field that would change the results, and that the model of config class `cls` cannot follow.

    Raises:
        CheckpointError: it names the field, its value and what the model can have there.
    """
    rules = {**_CHANGES_RESULTS, **_always(cls)}
    own = _own_fields(cls)
    for name, allowed in rules.items():
        if name not in own:
            _refuse(name, config.get(name), allowed)
    for prefix, rope in _ropes(config):
        for name, allowed in _ROPE_CHANGES_RESULTS.items():
            if name not in getattr(cls, "rope_follows", ()):
                _refuse(prefix + name, rope.get(name), allowed)


def unknown_fields(cls: type[Any], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of fields that are set and unknown here: they may change the results of `cls`'s model."""
    known = {*_READ_ELSEWHERE.split(), *_WITHOUT_EFFECT.split()} | _CHANGES_RESULTS.keys() | _own_fields(cls)
    known |= _always(cls).keys() | {name for each in cls.__mro__ for name in vars(each).get("unread", ())}
    unknown = [name for name, value in config.items() if value and name not in known]
    rope_known = {*_ROPE_READ.split()} | _ROPE_CHANGES_RESULTS.keys()
    unknown += [
        prefix + name for prefix, rope in _ropes(config) for name in rope if rope[name] and name not in rope_known
    ]
    return tuple(sorted(unknown))


def _refuse(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value is None or _comes_to(value, allowed):
        return
    shown, others = repr(value), " or ".join(["null", *map(repr, allowed)])
    raise CheckpointError(
        f"config.json: {name} is {shown[:80]}{'...' * (len(shown) > 80)}, which would change the results and is not "
        f"implemented for this architecture; it can be {others}. Use a model without it"
    )


def _comes_to(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether a value, or each one of a list for each layer, is allowed."""
    return value in allowed or (isinstance(value, list) and all(item in allowed for item in value))


def _ropes(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The parameters of each rotation, and what comes before their names."""
    given = config.get("rope_parameters") or {}
    nested = [(f"rope_parameters.{kind}.", rope) for kind, rope in given.items() if isinstance(rope, Mapping)]
    return nested or [("rope_parameters.", given)]


def _own_fields(cls: type[Any]) -> frozenset[str]:
    fields = dataclasses.fields(cls)
    return frozenset(name for field in fields for name in (field.name, *field.metadata.get("also", ())))


def _always(cls: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The values that a class allows, by field; its own go before those that it inherits."""
    merged: dict[str, tuple[Any, ...]] = {}
    for each in reversed(cls.__mro__):
        merged |= vars(each).get("always", {})
    return merged
