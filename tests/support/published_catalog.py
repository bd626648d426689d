"""Published quantized checkpoints, as `published_checkpoints` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from published_checkpoints import Layout, PublishedCheckpoint, expand
from published_configs import FOLDER
from published_layouts import (
    AWQ,
    FP8_BLOCK,
    FP8_BLOCK_BF16,
    FP8_DYNAMIC,
    FP8_QUARK,
    FP8_STATIC,
    INT8,
    MXFP4,
    PLAIN,
    Linears,
    Others,
    attention_of,
    mlp_of,
    norms_of,
    packed,
    tables_of,
)


def _latent_attention(prefix: str, heads: int, layout: Layout) -> Linears:
    return {
        f"{prefix}.q_a_proj": (1536, 7168, layout),
        f"{prefix}.q_b_proj": (heads * 192, 1536, layout),
        f"{prefix}.kv_a_proj_with_mqa": (576, 7168, layout),
        f"{prefix}.kv_b_proj": (heads * 256, 512, layout),
        f"{prefix}.o_proj": (7168, heads * 128, layout),
    }


def _llama(quantization: Mapping[str, Any], layout: Layout, form: str, *passed_over: str) -> PublishedCheckpoint:
    layer = "model.layers.{0..31}"
    scales: Others = {name: ("F32", "") for name in passed_over if name.endswith("{k,v}_scale")}
    return PublishedCheckpoint(
        config="llama-3.1-8b",
        linears=attention_of(f"{layer}.self_attn", 4096, 4096, 1024, layout)
        | mlp_of(f"{layer}.mlp", 4096, 14336, layout),
        others=norms_of("{0..31}", 4096) | tables_of(128256, 4096) | scales,
        quantization=quantization,
        formats=frozenset({form}),
        passed_over=passed_over,
    )


def _qwen3_8b(quantization: Mapping[str, Any]) -> PublishedCheckpoint:
    layer = "model.layers.{0..35}"
    return PublishedCheckpoint(
        config="qwen3-30b-a3b",
        changes={
            "architectures": ["Qwen3ForCausalLM"],
            **dict.fromkeys(("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob")),
            **dict.fromkeys(("num_experts", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")),
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "max_window_layers": 36,
            "model_type": "qwen3",
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
        },
        linears=attention_of(f"{layer}.self_attn", 4096, 4096, 1024, FP8_BLOCK_BF16)
        | mlp_of(f"{layer}.mlp", 4096, 12288, FP8_BLOCK_BF16),
        others=norms_of("{0..35}", 4096)
        | tables_of(151936, 4096)
        | {f"{layer}.self_attn.{{q,k}}_norm.weight": ("BF16", "128")},
        quantization=quantization,
        formats=frozenset({"fp8 128x128"}),
    )


def _qwen3_vl_8b() -> PublishedCheckpoint:
    """The text model in fp8; the tower is left as it is, linear by linear, and so is the table of its positions."""
    layer, tower = "model.language_model.layers.{0..35}", "model.visual"
    mergers = f"{tower}.{{merger,deepstack_merger_list.{{0..2}}}}"
    plain = (
        ("attn.qkv", 3456, 1152),
        ("attn.proj", 1152, 1152),
        ("mlp.linear_fc1", 4304, 1152),
        ("mlp.linear_fc2", 1152, 4304),
    )
    merging = {f"{mergers}.linear_fc1": (4608, 4608, PLAIN), f"{mergers}.linear_fc2": (4096, 4608, PLAIN)}
    blocks = {f"{tower}.blocks.{{0..26}}.{name}": (rows, columns, PLAIN) for name, rows, columns in plain}
    left_out = ("lm_head", *(name for pattern in (*merging, *blocks) for name in expand(pattern)))
    norms = f"{layer}.{{input_layernorm,post_attention_layernorm}}.weight"
    return PublishedCheckpoint(
        config="qwen3-vl-8b",
        linears=attention_of(f"{layer}.self_attn", 4096, 4096, 1024, FP8_BLOCK_BF16)
        | mlp_of(f"{layer}.mlp", 4096, 12288, FP8_BLOCK_BF16)
        | merging
        | blocks,
        others={
            norms: ("BF16", "4096"),
            "model.language_model.norm.weight": ("BF16", "4096"),
            f"{layer}.self_attn.{{q,k}}_norm.weight": ("BF16", "128"),
            "{model.language_model.embed_tokens,lm_head}.weight": ("BF16", "151936 4096"),
            f"{mergers}.linear_fc1.bias": ("BF16", "4608"),
            f"{mergers}.linear_fc2.bias": ("BF16", "4096"),
            f"{tower}.merger.norm.{{weight,bias}}": ("BF16", "1152"),
            f"{tower}.deepstack_merger_list.{{0..2}}.norm.{{weight,bias}}": ("BF16", "4608"),
            f"{tower}.patch_embed.proj.weight": ("BF16", "1152 3 2 16 16"),
            f"{tower}.patch_embed.proj.bias": ("BF16", "1152"),
            f"{tower}.pos_embed.weight": ("BF16", "2304 1152"),
            f"{tower}.blocks.{{0..26}}.norm{{1,2}}.{{weight,bias}}": ("BF16", "1152"),
            **{f"{tower}.blocks.{{0..26}}.{name}.bias": ("BF16", str(rows)) for name, rows, _ in plain},
        },
        quantization=_fp8_block(*left_out),
        formats=frozenset({"fp8 128x128", "bfloat16"}),
    )


def _qwen2_5_vl_7b() -> PublishedCheckpoint:
    """The text model in int4; of the tower its name alone says that it is left as it is."""
    layer, block = "model.layers.{0..27}", "visual.blocks.{0..31}"
    plain = {
        "attn.qkv": (3840, 1280),
        "attn.proj": (1280, 1280),
        "mlp.{gate,up}_proj": (3420, 1280),
        "mlp.down_proj": (1280, 3420),
    }
    return PublishedCheckpoint(
        config="qwen2.5-vl-7b",
        linears=attention_of(f"{layer}.self_attn", 3584, 3584, 512, AWQ)
        | mlp_of(f"{layer}.mlp", 3584, 18944, AWQ)
        | {f"{block}.{name}": (*shape, PLAIN) for name, shape in plain.items()}
        | {"visual.merger.mlp.0": (5120, 5120, PLAIN), "visual.merger.mlp.2": (3584, 5120, PLAIN)},
        others=norms_of("{0..27}", 3584)
        | tables_of(152064, 3584)
        | {
            f"{layer}.self_attn.q_proj.bias": ("F16", "3584"),
            f"{layer}.self_attn.{{k,v}}_proj.bias": ("F16", "512"),
            "visual.merger.ln_q.weight": ("F16", "1280"),
            "visual.merger.mlp.0.bias": ("F16", "5120"),
            "visual.merger.mlp.2.bias": ("F16", "3584"),
            "visual.patch_embed.proj.weight": ("F16", "1280 3 2 14 14"),
            f"{block}.norm{{1,2}}.weight": ("F16", "1280"),
            **{f"{block}.{name}.bias": ("F16", str(rows)) for name, (rows, _) in plain.items()},
        },
        quantization={
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": ["visual"],
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        formats=frozenset({"awq int4 per 128 with zero point", "bfloat16"}),
    )


def _mistral_small_3_1() -> PublishedCheckpoint:
    """The text model in fp8; the tower and the projector are left as they are, linear by linear."""
    layer, block = "language_model.model.layers.{0..39}", "vision_tower.transformer.layers.{0..23}"
    plain: Linears = {
        f"{block}.attention.{{q,k,v,o}}_proj": (1024, 1024, PLAIN),
        f"{block}.feed_forward.{{gate,up}}_proj": (4096, 1024, PLAIN),
        f"{block}.feed_forward.down_proj": (1024, 4096, PLAIN),
        "multi_modal_projector.patch_merger.merging_layer": (1024, 4096, PLAIN),
        "multi_modal_projector.linear_1": (5120, 1024, PLAIN),
        "multi_modal_projector.linear_2": (5120, 5120, PLAIN),
    }
    left_out = (name for pattern in plain for name in expand(pattern))
    return PublishedCheckpoint(
        config="mistral-small-3.1-24b",
        linears=attention_of(f"{layer}.self_attn", 5120, 4096, 1024, FP8_DYNAMIC)
        | mlp_of(f"{layer}.mlp", 5120, 32768, FP8_DYNAMIC)
        | plain,
        others={
            f"{layer}.{{input_layernorm,post_attention_layernorm}}.weight": ("BF16", "5120"),
            "language_model.model.norm.weight": ("BF16", "5120"),
            "language_model.{model.embed_tokens,lm_head}.weight": ("BF16", "131072 5120"),
            f"{block}.{{attention_norm,ffn_norm}}.weight": ("BF16", "1024"),
            "vision_tower.ln_pre.weight": ("BF16", "1024"),
            "vision_tower.patch_conv.weight": ("BF16", "1024 3 14 14"),
            "multi_modal_projector.norm.weight": ("BF16", "1024"),
        },
        quantization=_compressed(
            "float-quantized",
            _numbers(8, "float", "channel"),
            _numbers(8, "float", "token", dynamic=True),
            *left_out,
            "language_model.lm_head",
        ),
        formats=frozenset({"fp8 per row", "bfloat16"}),
    )


def _qwen3_235b(
    quantization: Mapping[str, Any], attention: Layout, experts: Layout, *formats: str
) -> PublishedCheckpoint:
    layer = "model.layers.{0..93}"
    return PublishedCheckpoint(
        config="qwen3-235b-a22b",
        linears=attention_of(f"{layer}.self_attn", 4096, 8192, 512, attention)
        | mlp_of(f"{layer}.mlp.experts.{{0..127}}", 4096, 1536, experts),
        others=norms_of("{0..93}", 4096)
        | tables_of(151936, 4096)
        | {
            f"{layer}.self_attn.{{q,k}}_norm.weight": ("BF16", "128"),
            f"{layer}.mlp.gate.weight": ("BF16", "128 4096"),
        },
        quantization=quantization,
        formats=frozenset(formats),
    )


def _deepseek_r1(
    quantization: Mapping[str, Any],
    attention: Layout,
    rest: Layout,
    *formats: str,
    prediction: Layout,
    passed_over: tuple[str, ...] = (),
) -> PublishedCheckpoint:
    layers, predicting = "{0..60}", "model.layers.61"
    linears = _latent_attention(f"model.layers.{layers}.self_attn", 128, attention)
    linears |= mlp_of("model.layers.{0..2}.mlp", 7168, 18432, rest)
    linears |= mlp_of("model.layers.{3..60}.mlp.{experts.{0..255},shared_experts}", 7168, 2048, rest)
    linears |= _latent_attention(f"{predicting}.self_attn", 128, prediction)
    linears |= mlp_of(f"{predicting}.mlp.{{experts.{{0..255}},shared_experts}}", 7168, 2048, prediction)
    return PublishedCheckpoint(
        config="deepseek-r1",
        linears=linears,
        others=norms_of("{0..61}", 7168)
        | tables_of(129280, 7168)
        | {
            "model.layers.{0..61}.self_attn.q_a_layernorm.weight": ("BF16", "1536"),
            "model.layers.{0..61}.self_attn.kv_a_layernorm.weight": ("BF16", "512"),
            "model.layers.{3..61}.mlp.gate.weight": ("BF16", "256 7168"),
            "model.layers.{3..61}.mlp.gate.e_score_correction_bias": ("F32", "256"),
            f"{predicting}.{{embed_tokens,shared_head.head}}.weight": ("BF16", "129280 7168"),
            f"{predicting}.{{enorm,hnorm,shared_head.norm}}.weight": ("BF16", "7168"),
            f"{predicting}.eh_proj.weight": ("BF16", "7168 14336"),
        }
        | dict.fromkeys(passed_over, ("F32", "")),
        quantization=quantization,
        formats=frozenset(formats),
        passed_over=(*passed_over, f"{predicting}."),
    )


def _deepseek_v32() -> PublishedCheckpoint:
    """R1 with an index in every layer, of whose linears one is stored plain."""
    indexer = "model.layers.{0..60}.self_attn.indexer"
    of_r1 = _deepseek_r1(_fp8_block(), FP8_BLOCK, FP8_BLOCK, "fp8 128x128", prediction=FP8_BLOCK)
    return replace(
        of_r1,
        config="deepseek-v3.2",
        linears={
            **of_r1.linears,
            f"{indexer}.wq_b": (64 * 128, 1536, FP8_BLOCK),
            f"{indexer}.wk": (128, 7168, FP8_BLOCK),
            f"{indexer}.weights_proj": (64, 7168, PLAIN),
        },
        formats=frozenset({"fp8 128x128", "bfloat16"}),
        others={**of_r1.others, f"{indexer}.k_norm.{{weight,bias}}": ("BF16", "128")},
    )


def _kimi_k2_thinking(quantization: Mapping[str, Any], experts: Layout, *formats: str) -> PublishedCheckpoint:
    return PublishedCheckpoint(
        config="kimi-k2",
        changes={"max_position_embeddings": 262144},
        linears=_latent_attention("model.layers.{0..60}.self_attn", 64, PLAIN)
        | mlp_of("model.layers.0.mlp", 7168, 18432, PLAIN)
        | mlp_of("model.layers.{1..60}.mlp.shared_experts", 7168, 2048, PLAIN)
        | mlp_of("model.layers.{1..60}.mlp.experts.{0..383}", 7168, 2048, experts),
        others=norms_of("{0..60}", 7168)
        | tables_of(163840, 7168)
        | {
            "model.layers.{0..60}.self_attn.q_a_layernorm.weight": ("BF16", "1536"),
            "model.layers.{0..60}.self_attn.kv_a_layernorm.weight": ("BF16", "512"),
            "model.layers.{1..60}.mlp.gate.weight": ("BF16", "384 7168"),
            "model.layers.{1..60}.mlp.gate.e_score_correction_bias": ("F32", "384"),
        },
        quantization=quantization,
        formats=frozenset({"bfloat16", *formats}),
    )


def _gpt_oss(config: str, num_layers: int, num_experts: int) -> PublishedCheckpoint:
    layer = f"model.layers.{{0..{num_layers - 1}}}"
    given = json.loads((FOLDER / f"{config}.json").read_text())["quantization_config"]
    return PublishedCheckpoint(
        config=config,
        linears=attention_of(f"{layer}.self_attn", 2880, 4096, 512, PLAIN),
        others=norms_of(f"{{0..{num_layers - 1}}}", 2880)
        | tables_of(201088, 2880)
        | {
            f"{layer}.self_attn.q_proj.bias": ("BF16", "4096"),
            f"{layer}.self_attn.{{k,v}}_proj.bias": ("BF16", "512"),
            f"{layer}.self_attn.o_proj.bias": ("BF16", "2880"),
            f"{layer}.self_attn.sinks": ("BF16", "64"),
            f"{layer}.mlp.router.weight": ("BF16", f"{num_experts} 2880"),
            f"{layer}.mlp.router.bias": ("BF16", f"{num_experts}"),
            f"{layer}.mlp.experts.gate_up_proj_blocks": ("U8", f"{num_experts} 5760 90 16"),
            f"{layer}.mlp.experts.gate_up_proj_scales": ("U8", f"{num_experts} 5760 90"),
            f"{layer}.mlp.experts.gate_up_proj_bias": ("BF16", f"{num_experts} 5760"),
            f"{layer}.mlp.experts.down_proj_blocks": ("U8", f"{num_experts} 2880 90 16"),
            f"{layer}.mlp.experts.down_proj_scales": ("U8", f"{num_experts} 2880 90"),
            f"{layer}.mlp.experts.down_proj_bias": ("BF16", f"{num_experts} 2880"),
        },
        quantization=given,
        formats=frozenset({"bfloat16", "mxfp4"}),
    )


def _fp8_block(*skipped: str) -> dict[str, Any]:
    names = {"modules_to_not_convert": [name for pattern in skipped for name in expand(pattern)]} if skipped else {}
    return {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    } | names


def _compressed(
    form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, *ignore: str
) -> dict[str, Any]:
    shared = {"actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    group = {
        "input_activations": None if inputs is None else shared | inputs,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": shared | weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": 1.5,
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed" if form == "pack-quantized" else "frozen",
    }


def _numbers(bits: int, kind: str, strategy: str, *, dynamic: bool = False, group: int | None = None) -> dict[str, Any]:
    return {
        "dynamic": dynamic,
        "group_size": group,
        "num_bits": bits,
        "strategy": strategy,
        "symmetric": True,
        "type": kind,
    }


def _quark(weight: Mapping[str, Any], inputs: Mapping[str, Any], *exclude: str, **rest: Any) -> dict[str, Any]:
    return {
        "algo_config": None,
        "exclude": [name for pattern in exclude for name in expand(pattern)],
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
        "global_quant_config": {"bias": None, "input_tensors": inputs, "output_tensors": None, "weight": weight},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "quant_method": "quark",
        "quant_mode": "eager_mode",
    } | rest


def _quark_fp4(*, is_dynamic: bool) -> dict[str, Any]:
    return {
        "ch_axis": -1,
        "dtype": "fp4",
        "group_size": 32,
        "is_dynamic": is_dynamic,
        "observer_cls": "PerBlockMXObserver",
        "qscheme": "per_group",
        "round_method": "half_even",
        "scale_calculation_mode": "even",
        "scale_format": "e8m0",
        "scale_type": "float",
        "symmetric": None,
    }


_QUARK_FP8 = {
    "ch_axis": None,
    "dtype": "fp8_e4m3",
    "group_size": None,
    "is_dynamic": False,
    "observer_cls": "PerTensorMinMaxObserver",
    "qscheme": "per_tensor",
    "symmetric": True,
}
_MXFP4 = (_quark_fp4(is_dynamic=False), _quark_fp4(is_dynamic=True))
_FP8_OUTPUTS = {"bias": None, "input_tensors": _QUARK_FP8, "output_tensors": _QUARK_FP8, "weight": _QUARK_FP8}
_LLAMA_LINEARS = "model.layers.{0..31}.{self_attn.{q,k,v,o},mlp.{gate,up,down}}_proj"
_QWEN_NORMS = "{input_layernorm,post_attention_layernorm,self_attn.q_norm,self_attn.k_norm}"
_KIMI_IGNORED = ("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*")

CHECKPOINTS: Mapping[str, PublishedCheckpoint] = {
    "deepseek-ai/DeepSeek-R1": _deepseek_r1(_fp8_block(), FP8_BLOCK, FP8_BLOCK, "fp8 128x128", prediction=FP8_BLOCK),
    "deepseek-ai/DeepSeek-V3.2": _deepseek_v32(),
    "amd/DeepSeek-R1-MXFP4": _deepseek_r1(
        _quark(
            *_MXFP4,
            "lm_head",
            "model.layers.{3..60}.mlp.gate",
            "model.layers.61.*",
            kv_cache_quant_config={"*kv_b_proj": _FP8_OUTPUTS | {"weight": _MXFP4[0], "input_tensors": _MXFP4[1]}},
        ),
        MXFP4,
        MXFP4,
        "mxfp4",
        prediction=PLAIN,
        passed_over=("model.layers.{0..60}.self_attn.{k,v}_scale",),
    ),
    "amd/DeepSeek-R1-0528-MXFP4": _deepseek_r1(
        _quark(*_MXFP4, "*self_attn*", "*mlp.gate.*", "*lm_head", "model.layers.61.*"),
        PLAIN,
        MXFP4,
        *("bfloat16", "mxfp4"),
        prediction=PLAIN,
    ),
    "moonshotai/Kimi-K2-Thinking": _kimi_k2_thinking(
        _compressed("pack-quantized", _numbers(4, "int", "group", group=32), None, *_KIMI_IGNORED),
        packed(32, "I32"),
        "packed int4 per 32",
    ),
    "amd/Kimi-K2-Thinking-MXFP4": _kimi_k2_thinking(
        _quark(*_MXFP4, *_KIMI_IGNORED, "model.layers.{1..60}.mlp.gate"), MXFP4, "mxfp4"
    ),
    "Qwen/Qwen3-8B-FP8": _qwen3_8b(_fp8_block("lm_head", f"model.layers.{{0..35}}.{_QWEN_NORMS}")),
    "Qwen/Qwen3-VL-8B-Instruct-FP8": _qwen3_vl_8b(),
    "Qwen/Qwen2.5-VL-7B-Instruct-AWQ": _qwen2_5_vl_7b(),
    "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-FP8-dynamic": _mistral_small_3_1(),
    "Qwen/Qwen3-235B-A22B-FP8": _qwen3_235b(
        _fp8_block("lm_head", f"model.layers.{{0..93}}.{_QWEN_NORMS}", "model.layers.{0..93}.mlp.gate"),
        FP8_BLOCK_BF16,
        FP8_BLOCK_BF16,
        "fp8 128x128",
    ),
    "amd/Qwen3-235B-A22B-MXFP4": _qwen3_235b(
        _quark(*_MXFP4, "lm_head", "model.layers.{0..93}.mlp.gate", "model.layers.{0..93}.self_attn.{q,k,v,o}_proj"),
        PLAIN,
        MXFP4,
        *("bfloat16", "mxfp4"),
    ),
    "openai/gpt-oss-20b": _gpt_oss("gpt-oss-20b", 24, 32),
    "openai/gpt-oss-120b": _gpt_oss("gpt-oss-120b", 36, 128),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": _llama(
        _compressed("float-quantized", _numbers(8, "float", "tensor"), _numbers(8, "float", "tensor"), "lm_head"),
        FP8_STATIC,
        "fp8 per row",
        f"{_LLAMA_LINEARS}.input_scale",
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic": _llama(
        _compressed(
            "float-quantized",
            _numbers(8, "float", "channel"),
            _numbers(8, "float", "token", dynamic=True),
            "lm_head",
        ),
        FP8_DYNAMIC,
        "fp8 per row",
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": _llama(
        _compressed(
            "int-quantized", _numbers(8, "int", "channel"), _numbers(8, "int", "token", dynamic=True), "lm_head"
        ),
        INT8,
        "int8 per row",
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": _llama(
        _compressed("pack-quantized", _numbers(4, "int", "group", group=128), None, "lm_head"),
        packed(128, "I64"),
        "packed int4 per 128",
    ),
    "amd/Llama-3.1-8B-Instruct-FP8-KV": _llama(
        _quark(
            _QUARK_FP8,
            _QUARK_FP8,
            "lm_head",
            layer_quant_config={"*k_proj": _FP8_OUTPUTS, "*v_proj": _FP8_OUTPUTS},
        ),
        FP8_QUARK,
        "fp8 per row",
        f"{_LLAMA_LINEARS}.input_scale",
        "model.layers.{0..31}.self_attn.{k,v}_scale",
    ),
}
