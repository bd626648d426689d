"""Published `quantization_config`s: the layout of each layer by its name, as the writers of the formats match names."""

from __future__ import annotations

from typing import Any

import pytest
from compressed_tensors.utils.match import match_name
from transformers.quantizers.quantizers_utils import should_convert_module

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.layouts import (
    AwqLayout,
    Bitsandbytes4Layout,
    Float8Layout,
    GptqLayout,
    Int8Layout,
    Mxfp4BlocksLayout,
    Mxfp4Layout,
    Nvfp4Layout,
    PackedInt4Layout,
    PackedInt8Layout,
)
from atom_models.quantization.published import read_published
from atom_models.quantization.published.names import BY_COMPONENT, BY_GLOB, BY_PART, BY_TARGET, Dialect, Rules

Q, GATE, ROUTER = "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.gate_proj", "model.layers.3.mlp.gate"
EXPERT, SHARED = "model.layers.3.mlp.experts.7.up_proj", "model.layers.3.mlp.shared_experts.up_proj"
HEAD = "lm_head"
NAMES = (Q, GATE, ROUTER, EXPERT, SHARED, HEAD, "model.layers.13.self_attn.q_proj")

DEEPSEEK = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
QWEN_FP8 = DEEPSEEK | {"modules_to_not_convert": [HEAD, ROUTER, "model.layers.3.input_layernorm"]}
STATIC_FP8 = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": [HEAD]}


def compressed(weights: dict[str, Any] | None, *ignore: str, form: str = "pack-quantized", **group: Any) -> dict:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights} | group}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": list(ignore)}


FLOAT = {"num_bits": 8, "type": "float", "symmetric": True}
ROUNDED = {"input_activations": FLOAT | {"strategy": "token", "dynamic": True}}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
KIMI = compressed(
    INT4,
    *("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"),
)
GPT_OSS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", HEAD],
}
FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "scale_format": "e8m0"}
AMD_R1 = {
    "quant_method": "quark",
    "global_quant_config": {"weight": FP4, "input_tensors": FP4 | {"is_dynamic": True}},
    "exclude": ["*self_attn*", "*mlp.gate.*", "*mlp.gate", "*lm_head", "model.layers.61.*"],
    "layer_quant_config": {},
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}

FP4_BLOCKS = Bitsandbytes4Layout("fp4", nested=False)
INT8_ROWS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
# Static inputs whose codes lie around a zero point.
AROUND_A_POINT = {"input_activations": INT8_ROWS | {"strategy": "tensor", "symmetric": False, "dynamic": False}}
SYMMETRIC = GptqLayout(128, symmetric=True)
AUTO_ROUND = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 128}
CACHE_ALONE = {"quant_method": "compressed-tensors", "kv_cache_scheme": FLOAT | {"strategy": "tensor"}}

FLOAT8_ROWS = ROUNDED["input_activations"]
INT4_ROWS = {"num_bits": 4, "type": "int", "strategy": "channel", "group_size": None, "symmetric": True}
INT8 = {"dtype": "int8", "qscheme": "per_channel"}
INT8_INPUTS = {"input_tensors": {"dtype": "int8", "qscheme": "per_token", "is_dynamic": True}}
QUARK_FP4 = Mxfp4Layout("weight", rounds_inputs=True)
TILES, TILES_INV = Float8Layout((128, 128)), Float8Layout((128, 128), "weight_scale_inv")


@pytest.mark.parametrize(
    ("given", "layouts"),
    [
        (DEEPSEEK, {Q: TILES_INV, EXPERT: TILES_INV, HEAD: None}),
        (QWEN_FP8, {Q: TILES_INV, ROUTER: None, GATE: TILES_INV, HEAD: None}),
        (STATIC_FP8, {Q: Float8Layout(), HEAD: None}),
        (compressed(FLOAT | {"strategy": "tensor"}, HEAD, **ROUNDED), {Q: Float8Layout(), HEAD: None}),
        (compressed(FLOAT | {"strategy": "channel"}, HEAD, **ROUNDED), {Q: Float8Layout()}),
        (compressed(FLOAT | {"strategy": "channel"}, HEAD), {Q: Float8Layout(rounds_inputs=False)}),
        (compressed(FLOAT | {"strategy": "block", "block_structure": [128, 128]}, **ROUNDED), {Q: TILES}),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, form="int-quantized"), {Q: Int8Layout()}),
        (
            compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, form="int-quantized", **ROUNDED),
            {Q: Int8Layout(rounds_inputs=True)},
        ),
        (compressed(INT4 | {"group_size": 128}, HEAD), {Q: PackedInt4Layout(128), HEAD: None}),
        (compressed(INT4 | {"symmetric": False}), {Q: PackedInt4Layout(32, zero_points=True)}),
        (compressed(INT4 | {"strategy": "channel", "group_size": None}), {Q: PackedInt4Layout(None)}),
        (compressed(INT4_ROWS, input_activations=FLOAT8_ROWS), {Q: PackedInt4Layout(None, rounds_inputs=True)}),
        (compressed(INT4_ROWS, input_activations=FLOAT8_ROWS | {"dynamic": False}), {Q: PackedInt4Layout(None)}),
        (
            compressed(INT4_ROWS | {"symmetric": False}, input_activations=FLOAT8_ROWS),
            {Q: PackedInt4Layout(None, True)},
        ),
        (compressed(INT4, input_activations=FLOAT8_ROWS), {Q: PackedInt4Layout(32)}),
        (compressed(None), {Q: None}),
        (KIMI, {EXPERT: PackedInt4Layout(32), SHARED: None, Q: None, GATE: None, HEAD: None}),
        (compressed({"num_bits": 4, "type": "float", "group_size": 32}), {Q: Mxfp4Layout()}),
        (
            compressed({"num_bits": 4, "type": "float", "group_size": 32}, **ROUNDED),
            {Q: Mxfp4Layout(rounds_inputs=True)},
        ),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), {Q: Nvfp4Layout()}),
        (GPT_OSS, {"model.layers.3.mlp.experts": Mxfp4BlocksLayout(), Q: None, HEAD: None}),
        (AMD_R1, {EXPERT: QUARK_FP4, SHARED: QUARK_FP4, Q: None, ROUTER: None, HEAD: None}),
        (AMD_R1 | {"global_quant_config": {"weight": FP4}}, {EXPERT: Mxfp4Layout("weight")}),
        (AMD_R1 | {"global_quant_config": {"weight": INT8} | INT8_INPUTS}, {EXPERT: Int8Layout(rounds_inputs=True)}),
        (AMD_R1, {GATE: QUARK_FP4, "model.layers.61.mlp.experts.7.up_proj": None}),
        (AWQ, {Q: AwqLayout(128), HEAD: None}),
        (AWQ | {"modules_to_not_convert": ["gate"]}, {GATE: None, Q: AwqLayout(128)}),
        (GPTQ, {Q: SYMMETRIC, HEAD: None}),
        (GPTQ | {"lm_head": True, "checkpoint_format": "gptq_v2"}, {HEAD: GptqLayout(128, False, symmetric=True)}),
        (GPTQ | {"group_size": -1, "sym": False}, {Q: GptqLayout(None)}),
        (
            GPTQ | {"dynamic": {r"+:.*\.3\.mlp": {"group_size": 32}, r".*q_proj": {"sym": False, "desc_act": True}}},
            {GATE: GptqLayout(32, symmetric=True), Q: GptqLayout(128, sorted_inputs=True), HEAD: None},
        ),
        # The first rule that means a layer decides, and one that leaves it out is a rule like the others.
        (
            GPTQ | {"dynamic": {r"-:.*\.1?3\.self_attn": {}, "+:.*q_proj": {"group_size": 64}, "+:lm_head": {}}},
            {Q: None, GATE: SYMMETRIC, HEAD: SYMMETRIC},
        ),
        (
            GPTQ | {"dynamic": {"+:.*q_proj": {"group_size": 64}, "-:model.layers.3": {}, "-:self_attn": {}}},
            {
                Q: GptqLayout(64, symmetric=True),
                GATE: None,
                "model.layers.13.self_attn.k_proj": SYMMETRIC,
            },
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {Q: Int8Layout("SCB", 127.0, ("weight_format",))}),
        (BITSANDBYTES, {Q: Bitsandbytes4Layout("fp4", nested=False), HEAD: None}),
        (
            BITSANDBYTES | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
            {Q: Bitsandbytes4Layout("nf4", nested=True)},
        ),
        (BITSANDBYTES | {"llm_int8_skip_modules": ["gate_proj"]}, {GATE: None, Q: FP4_BLOCKS, HEAD: FP4_BLOCKS}),
        (STATIC_FP8 | {"ignored_layers": [GATE]}, {GATE: None, Q: Float8Layout(), HEAD: None}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, {Q: GptqLayout(32, symmetric=True)}),
        ({**AWQ, "group_size": 64, "q_group_size": 32}, {Q: AwqLayout(64)}),
        (
            {name: value for name, value in AWQ.items() if name != "group_size"} | {"q_group_size": 64},
            {Q: AwqLayout(64)},
        ),
        # A group may have another format than the others.
        (compressed(INT8_ROWS, form="pack-quantized", format="int-quantized"), {Q: Int8Layout()}),
        (compressed(INT8_ROWS), {Q: PackedInt8Layout()}),
        (compressed(INT8_ROWS | {"strategy": "group", "group_size": 64}), {Q: PackedInt8Layout(64)}),
        (compressed(INT8_ROWS, form="int-quantized", **AROUND_A_POINT), {Q: Int8Layout()}),
        (AUTO_ROUND, {Q: SYMMETRIC, HEAD: None}),
        (AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}, {Q: AwqLayout(128), HEAD: None}),
        (
            AUTO_ROUND | {"sym": False, "extra_config": {GATE: {"bits": 16}, Q: {"group_size": 32}, HEAD: {"bits": 4}}},
            {GATE: None, Q: GptqLayout(32), EXPERT: GptqLayout(128), HEAD: GptqLayout(128)},
        ),
        (
            AUTO_ROUND | {"extra_config": {"self_attn.*": {"bits": 16}}},
            {Q: None, GATE: SYMMETRIC},
        ),
        # A name means no layer whose name is longer.
        (AUTO_ROUND | {"extra_config": {ROUTER: {"bits": 16}}}, {ROUTER: None, GATE: SYMMETRIC}),
        (CACHE_ALONE, {Q: None, HEAD: None}),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, {Q: None, HEAD: None}),
        ({"quant_method": "quark", "kv_cache_quant_config": {"*k_proj": {}}}, {Q: None, HEAD: None}),
        (CACHE_ALONE | {"config_groups": {}}, {Q: None}),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*.mlp.gate"]},
            {ROUTER: None, GATE: Float8Layout(), HEAD: None},
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"]}, {ROUTER: None}),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {Q: Nvfp4Layout("weight", "weight_scale_2", divides=False)},
        ),
    ],
    ids=lambda one: one.get("quant_method", "") if isinstance(one, dict) else "",
)
def test_a_config_gives_each_layer_its_layout(given, layouts):
    published = read_published(given)
    assert {name: published.choose(name).layout for name in layouts} == layouts


def test_a_name_beats_a_pattern_and_a_pattern_the_class():
    given = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "all": {"targets": ["Linear"], "weights": INT4},
            "some": {"targets": ["re:.*self_attn.*"], "weights": FLOAT | {"strategy": "channel"}},
            "one": {"targets": [Q], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
        },
    }
    published = read_published(given)
    assert published.choose(Q).layout == Int8Layout()
    assert published.choose(Q.replace("q_proj", "k_proj")).layout == Float8Layout(rounds_inputs=False)
    assert published.choose(GATE).layout == PackedInt4Layout(32)
    assert published.choose(Q).rule == f"meant by {Q!r}"


def test_quark_gives_layers_of_a_pattern_their_own_layout():
    given = AMD_R1 | {
        "exclude": [],
        "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}},
    }
    published = read_published(given)
    ignored = ("input_scale", "output_scale")
    assert published.choose(Q).layout == Float8Layout(ignored=ignored, rounds_inputs=False)
    assert published.choose(EXPERT).layout == QUARK_FP4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quant_method": "hqq"}, "quantized as hqq, which .* it reads fp8, "),
        (DEEPSEEK | {"weight_block_size": [128]}, r"fp8 with weight_block_size \[128\], .*two numbers"),
        (DEEPSEEK | {"fmt": "e5m2"}, "fp8 with fmt 'e5m2'"),
        (BITSANDBYTES | {"bnb_4bit_quant_type": "int4"}, "with bnb_4bit_quant_type 'int4', .* it reads nf4, fp4"),
        (BITSANDBYTES | {"bnb_4bit_quant_storage": "bfloat16"}, "with bnb_4bit_quant_storage 'bfloat16'"),
        ({"quant_method": "bitsandbytes"}, "with load_in_4bit None"),
        (AWQ | {"bits": 8}, "awq with bits 8, which this version does not read; it reads 4"),
        (AWQ | {"version": "gemv"}, "awq with version 'gemv'"),
        (GPTQ | {"bits": 3}, "gptq with bits 3"),
        (GPTQ | {"dynamic": {"+:.*q_proj": {"bits": 8}}}, r"gptq with dynamic\.\+:\.\*q_proj\.bits 8, .* it reads 4"),
        (GPTQ | {"dynamic": [".*"]}, r"gptq with dynamic \['.*'\]"),
        (GPTQ | {"dynamic": {".*": 8}}, r"gptq with dynamic \{'.*': 8\}"),
        (GPTQ | {"checkpoint_format": "gptq_p"}, "checkpoint_format 'gptq_p'"),
        (
            compressed(INT4 | {"num_bits": 3}),
            r"group_0\.weights 'format pack-quantized, type int, num_bits 3",
        ),
        (compressed(INT8_ROWS | {"symmetric": False}), "format pack-quantized, type int, .* int8 that is symmetric"),
        (AUTO_ROUND | {"bits": 3}, "auto-round with bits 3, .* it reads 4, and 16"),
        (AUTO_ROUND | {"extra_config": {Q: {"bits": 8}}}, rf"auto-round with extra_config\.{Q}\.bits 8"),
        (AUTO_ROUND | {"extra_config": {Q: 8}}, "auto-round with extra_config"),
        (AUTO_ROUND | {"data_type": "mx_fp"}, "auto-round with data_type 'mx_fp'.* it reads int"),
        (
            AUTO_ROUND | {"packing_format": "auto_round:llm_compressor"},
            "it reads auto_round:auto_gptq, auto_round",
        ),
        (
            compressed(INT8_ROWS | {"symmetric": False}, form="int-quantized"),
            "symmetric False.* int8 that is symmetric",
        ),
        ("fp8", "quantization_config is 'fp8'; it must be an object that names a quant_method"),
        (compressed(INT4, "re:("), r"has the rule 're:\(': its regular expression is not valid"),
        (compressed(INT4, targets=["re:["]), r"has the rule 're:\['"),
        (GPTQ | {"dynamic": {"-:(": {}}}, r"has the rule '-:\('"),
        (AMD_R1 | {"exclude": ["re:*"]}, r"has the rule 're:\*'"),
        (compressed(INT4 | {"actorder": "group"}), r"config_groups\.group_0\.actorder 'group'"),
        (compressed(FLOAT | {"strategy": "block"}), r"config_groups\.group_0\.weights"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups {}"),
        (AMD_R1 | {"global_quant_config": {"weight": [FP4, FP4]}}, r"global_quant_config\.weight"),
        (AMD_R1 | {"global_quant_config": {"weight": FP4 | {"group_size": 16}}}, "'fp4 per_group'"),
        (AMD_R1 | {"layer_type_quant_config": {"Linear": {}}}, "layer_type_quant_config"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "quant_algo 'FP8_PB_WO'.*NVFP4, FP8"),
    ],
)
def test_what_is_not_read_is_named_with_what_is(given, message):
    with pytest.raises(UnsupportedQuantizationError, match=message):
        read_published(given)


FBGEMM = {"quant_method": "fbgemm_fp8"}
NO_GROUP_SIZE = {name: value for name, value in AWQ.items() if name != "group_size"}


@pytest.mark.parametrize(
    ("given", "layouts"),
    [
        (
            FBGEMM | {"modules_to_not_convert": [ROUTER]},
            {Q: Float8Layout(ignored=("input_scale", "input_scale_ub")), ROUTER: None, HEAD: None},
        ),
        (FBGEMM, {HEAD: None, ROUTER: Float8Layout(ignored=("input_scale", "input_scale_ub"))}),
        (GPT_OSS | {"modules_to_not_convert": None}, {Q: Mxfp4BlocksLayout(), HEAD: None}),
        (NO_GROUP_SIZE, {Q: AwqLayout(None)}),
        (AWQ | {"group_size": -1}, {Q: AwqLayout(None)}),
        (AWQ | {"group_size": 1}, {Q: AwqLayout(1)}),
        ({**NO_GROUP_SIZE, "w_bit": 4, "bits": 4}, {Q: AwqLayout(None)}),
        ({name: value for name, value in AWQ.items() if name != "bits"} | {"w_bit": 4}, {Q: AwqLayout(128)}),
        (AWQ | {"version": None, "zero_point": None}, {Q: AwqLayout(128)}),
        (AWQ | {"version": "GEMM"}, {Q: AwqLayout(128)}),
        (DEEPSEEK | {"fmt": None, "activation_scheme": None}, {Q: TILES_INV}),
        (DEEPSEEK | {"fmt": "float8_e4m3fn"}, {Q: TILES_INV}),
        (DEEPSEEK | {"weight_block_size": [1, 64]}, {Q: Float8Layout((1, 64), "weight_scale_inv")}),
        (GPTQ | {"checkpoint_format": None}, {Q: SYMMETRIC}),
        (GPTQ | {"checkpoint_format": "gptq"}, {Q: SYMMETRIC}),
        (BITSANDBYTES | {"bnb_4bit_quant_storage": "uint8"}, {Q: FP4_BLOCKS}),
        (compressed(INT4 | {"actorder": "static"}), {Q: PackedInt4Layout(32)}),
        (compressed(INT4 | {"actorder": "weight"}), {Q: PackedInt4Layout(32)}),
        (compressed(INT4 | {"actorder": False}), {Q: PackedInt4Layout(32)}),
        (compressed(INT8_ROWS | {"strategy": "tensor"}, form="int-quantized"), {Q: Int8Layout()}),
        (
            compressed(FLOAT | {"strategy": "block", "block_structure": [64, 32]}),
            {Q: Float8Layout((64, 32), rounds_inputs=False)},
        ),
        (AMD_R1 | {"global_quant_config": {}}, {Q: None, EXPERT: None}),
        (AMD_R1 | {"layer_type_quant_config": None}, {EXPERT: QUARK_FP4}),
        (
            AMD_R1 | {"global_quant_config": {"weight": INT8 | {"qscheme": "per_tensor"}}},
            {EXPERT: Int8Layout(rounds_inputs=False)},
        ),
    ],
    ids=lambda one: one.get("quant_method", "") if isinstance(one, dict) else "",
)
def test_each_field_may_be_left_out_or_have_any_of_its_values(given, layouts):
    published = read_published(given)
    assert {name: published.choose(name).layout for name in layouts} == layouts


INSTEAD = "Use the model's checkpoint in bfloat16 or a GGUF file of it"


@pytest.mark.parametrize(
    ("given", "field", "allowed"),
    [
        (DEEPSEEK | {"weight_block_size": [128, 0]}, "fp8 with weight_block_size [128, 0]", "two numbers"),
        (DEEPSEEK | {"weight_block_size": [128, True]}, "fp8 with weight_block_size [128, True]", "two numbers"),
        (DEEPSEEK | {"weight_block_size": 128}, "fp8 with weight_block_size 128", "two numbers"),
        (DEEPSEEK | {"fmt": "e5m2"}, "fp8 with fmt 'e5m2'", "e4m3, float8_e4m3fn"),
        (DEEPSEEK | {"activation_scheme": "x"}, "fp8 with activation_scheme 'x'", "dynamic, static"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes with load_in_4bit None", "True"),
        (BITSANDBYTES | {"bnb_4bit_quant_storage": "x"}, "bitsandbytes with bnb_4bit_quant_storage 'x'", "uint8"),
        (AWQ | {"version": "gemv"}, "awq with version 'gemv'", "gemm, GEMM"),
        (AWQ | {"zero_point": False}, "awq with zero_point False", "True"),
        (AWQ | {"group_size": 0}, "awq with group_size 0", "a number of inputs, and -1 for whole rows"),
        (AWQ | {"group_size": True}, "awq with group_size True", "a number of inputs, and -1 for whole rows"),
        (GPTQ | {"group_size": -2}, "gptq with group_size -2", "a number of inputs, and -1 for whole rows"),
        (
            GPTQ | {"dynamic": {"+:a": {"group_size": 0}}},
            "gptq with dynamic.+:a.group_size 0",
            "a number of inputs, and -1 for whole rows",
        ),
        (GPTQ | {"dynamic": {"+:a": 1}}, "gptq with dynamic {'+:a': 1}", "rules with what they change"),
        (GPTQ | {"checkpoint_format": "x"}, "gptq with checkpoint_format 'x'", "gptq, gptq_v2"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": 5}},
            "compressed-tensors with config_groups.a 5",
            "weights and targets",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": [5]},
            "compressed-tensors with config_groups [5]",
            "at least one group",
        ),
        (
            compressed(INT4 | {"group_size": 0}),
            "compressed-tensors with config_groups.group_0.weights.group_size 0",
            "a number of inputs, and -1 for whole rows",
        ),
        (
            compressed(INT4 | {"actorder": "group"}),
            "compressed-tensors with config_groups.group_0.actorder 'group'",
            "weight, null",
        ),
        (
            compressed(INT4 | {"num_bits": 3}),
            "compressed-tensors with config_groups.group_0.weights 'format pack-quantized, type int, num_bits 3, "
            "strategy group, group_size 32, symmetric True'",
            "fp8, int4, mxfp4 and nvfp4, and int8 that is symmetric",
        ),
        (AMD_R1 | {"layer_type_quant_config": {"a": 1}}, "quark with layer_type_quant_config {'a': 1}", "{}"),
        (
            AMD_R1 | {"layer_quant_config": {"*q": {"weight": FP4 | {"scale_format": "x"}}}},
            "quark with layer_quant_config.*q.weight 'fp4 per_group'",
            "fp8_e4m3 and int8 per tensor or channel, fp4 per group of 32",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "x"},
            "modelopt with quant_algo 'x'",
            "NVFP4, FP8",
        ),
    ],
    ids=lambda one: one.get("quant_method", "") if isinstance(one, dict) else str(one)[:30],
)
def test_a_field_that_is_not_read_is_told_with_its_value_and_what_is(given, field, allowed):
    with pytest.raises(UnsupportedQuantizationError) as caught:
        read_published(given)
    assert str(caught.value) == (
        f"the checkpoint is quantized as {field}, which this version does not read; it reads {allowed}. {INSTEAD}"
    )


def test_why_a_layer_has_its_layout_is_told():
    published = read_published(QWEN_FP8)
    assert published.choose(HEAD).rule == f"left out by {HEAD!r}"
    assert published.choose(Q).rule == "as all of fp8"
    assert read_published(CACHE_ALONE).choose(Q).rule == "meant by no rule"
    assert read_published(GPTQ | {"dynamic": {"-:.*q_proj": {}}}).choose(Q).rule == "left out by '-:.*q_proj'"
    every = {fp8["quant_method"] for fp8 in (DEEPSEEK, GPTQ, AWQ, BITSANDBYTES, GPT_OSS, AMD_R1)}
    with pytest.raises(UnsupportedQuantizationError) as caught:
        read_published({"quant_method": "hqq"})
    told = str(caught.value)
    assert told.endswith(f". {INSTEAD}")
    assert set(told.partition("it reads ")[2].partition(". ")[0].split(", ")) >= every | {"fbgemm-fp8", "modelopt"}


RULES = [
    "lm_head",
    "model.layers.3",
    "model.layers.3.",
    "model.layers.1",
    ROUTER,
    "q_proj",
    "model.layers.*.self_attn",
    r"model\.layers\.\d+\.mlp",
    "head",
    "gate",
    "re:.*self_attn.*",
    r"re:model\.layers\.3\.",
    "re:.*gate",
    "re:model.layers.3",
    "re:self_attn",
    "model.layers.1*",
    "model.layers.[13]",
    r"model.layers.1\d",
    "mlp|self_attn",
    "model.layers.3.mlp.gate$",
    "mlp.gate+",
]


def means(rule: str, name: str, dialect: Dialect) -> bool:
    return Rules([rule], dialect).first_match(name) is not None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", RULES)
def test_rules_mean_what_their_writers_libraries_mean(rule, name):
    assert means(rule, name, BY_COMPONENT) is not should_convert_module(name, [rule])
    assert means(rule, name, BY_TARGET) is match_name(name, rule)


def test_rules_mean_a_layer_with_or_without_what_a_wrapper_puts_before_it():
    assert Rules(["layers.3.mlp.gate"], BY_TARGET).first_match(ROUTER) == "layers.3.mlp.gate"
    assert Rules([f"language_model.{ROUTER}"], BY_TARGET).first_match(ROUTER) is not None
    assert Rules(["mlp.gate"], BY_TARGET).first_match(ROUTER) is None


@pytest.mark.parametrize("dialect", [BY_COMPONENT, BY_GLOB], ids=["component", "glob"])
def test_a_rule_for_one_layer_means_no_layer_whose_number_begins_so(dialect):
    third, thirteenth = Q, NAMES[-1]
    for rule in ("layers.1", "model.layers.1"):
        assert not means(rule, thirteenth, dialect)
    for rule in ("model.layers.13", "layers.13"):
        assert means(rule, thirteenth, dialect)
        assert not means(rule, third, dialect)


def test_the_first_rule_of_the_config_is_named_whether_it_is_a_text_or_a_pattern():
    for rules in (
        ["re:.*gate", ROUTER],
        [ROUTER, "re:.*gate"],
        [HEAD, "re:.*gate", ROUTER],
        [ROUTER, "re:.*gate", ROUTER],
    ):
        assert Rules(rules, BY_GLOB).first_match(ROUTER) == next(rule for rule in rules if rule != HEAD)


def test_globs_mean_layers_below_a_name_too():
    assert means("*mlp.experts*", EXPERT, BY_GLOB)
    assert means("model.layers.3.mlp", EXPERT, BY_GLOB)
    assert not means("model.layers.3.mlp", "model.layers.3.mlp2", BY_GLOB)
    assert means("re:.*experts", EXPERT, BY_GLOB)
    assert not means("*experts", SHARED, BY_GLOB)
    assert means("shared", SHARED, BY_PART)


def test_a_pattern_that_cannot_be_read_means_nothing():
    assert not means("re:(", Q, BY_TARGET)
    assert not means("(", Q, BY_COMPONENT)
