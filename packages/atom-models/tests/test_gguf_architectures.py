"""Each architecture's GGUF file, written as llama.cpp's converter does, gives the model of its folder."""

from __future__ import annotations

import dataclasses
import logging

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from atom_models import CheckpointError, load_model, model_requirements, open_checkpoint
from atom_models.architectures import find_architecture
from atom_models.checkpoint.gguf_architectures import gguf_architectures
from atom_models.checkpoint.gguf_header import shortest_decimal
from atom_models.config.other_fields import unknown_fields
from atom_models.weights.gguf_source import open_gguf
from converted_gguf import ARCHITECTURES, write_gguf
from tiny_architectures import FAMILIES as RECIPES
from tiny_architectures import PAST_EVERY_WINDOW, make_tiny

# What files leave unsaid, as it is in published models: Gemma's layers and scale.
PUBLISHED = {"gemma3": {"num_hidden_layers": 7, "sliding_window_pattern": 6, "query_pre_attn_scalar": 24}}
# Without windows in models whose windows the converter drops, and without dense layers in Qwen3-MoE.
FAMILIES = (
    "llama",
    "llama-3.1",
    "mistral-full",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v2-lite",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe",
    "glm4_moe_lite",
    "minimax_m2",
)
TOKENS = [[3 + 7 * i % 381 for i in range(length)] for length in (5, PAST_EVERY_WINDOW)]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, tiny_family):
    """``folder_of(family)``: its tiny checkpoint, with what GGUF files leave unsaid as in published models."""
    written = {}

    def find(family):
        if family not in PUBLISHED:
            return tiny_family(family)
        if family not in written:
            written[family] = make_tiny(family, tmp_path_factory.mktemp("gguf") / family, **PUBLISHED[family])
        return written[family]

    return find


def logits(path):
    return load_model(path, dtype="float32", progress=False).logits(TOKENS)


def assert_equal_models(first, second):
    for actual, expected in zip(logits(first), logits(second), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_gives_the_logits_of_the_folder_it_was_made_of(family, folder_of, tmp_path):
    folder = folder_of(family)
    assert_equal_models(write_gguf(folder, tmp_path / "m.gguf"), folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_needs_what_its_folder_needs(family, folder_of, tmp_path):
    folder = folder_of(family)
    needs = [model_requirements(open_checkpoint(path)) for path in (write_gguf(folder, tmp_path / "m.gguf"), folder)]
    assert {one.implementation.name for one in needs} == {"atom"}
    # A file does not say whether it was Mistral or Llama, DeepSeek-V3 or GLM-4.7-Flash: they are computed alike.
    of_file, of_folder = (
        dataclasses.replace(one, architecture="", implementation=needs[0].implementation) for one in needs
    )
    assert of_file == of_folder


def test_every_architecture_is_tested():
    written = {ARCHITECTURES[RECIPES[family].model_type] for family in FAMILIES}
    assert {gguf.MODEL_ARCH_NAMES[architecture] for architecture in written} == set(gguf_architectures())


@pytest.mark.parametrize(
    ("family", "sizes", "quant", "quantized"),
    [
        ("qwen2", {}, "Q8_0", ""),
        ("mixtral", {"hidden_size": 64}, "Q4_0", ""),
        ("deepseek_v3", {}, "Q8_0", ""),
        ("gpt_oss", {"hidden_size": 64, "intermediate_size": 96}, "MXFP4", "_exps"),
        ("qwen3_moe", {"hidden_size": 256, "moe_intermediate_size": 256}, "Q4_K", ""),
        ("gemma3", {**PUBLISHED["gemma3"], "hidden_size": 256, "intermediate_size": 256}, "Q6_K", ""),
    ],
)
def test_a_quantized_file_gives_the_logits_of_its_dequantized_numbers(tmp_path, family, sizes, quant, quantized):
    folder = make_tiny(family, tmp_path / "model", **sizes)
    small = write_gguf(folder, tmp_path / "q.gguf", quant=quant, quantized=quantized)
    assert quant in {tensor.type_name for tensor in open_checkpoint(small).gguf.tensors.values()}
    plain = write_gguf(folder, tmp_path / "f.gguf", quant=quant, quantized=quantized, dequantized=True)
    assert_equal_models(small, plain)


def test_a_file_of_before_latents_were_in_two_halves_gives_the_same_logits(folder_of, tmp_path):
    older = ("deepseek2.expert_group_count", "deepseek2.expert_group_used_count", "deepseek2.expert_gating_func")
    folder = folder_of("kimi_k2")
    assert_equal_models(write_gguf(folder, tmp_path / "m.gguf", latent_halves=False, without=older), folder)


def test_a_file_with_one_half_of_the_latents_is_refused(folder_of, tmp_path):
    source = open_gguf(open_checkpoint(write_gguf(folder_of("kimi_k2"), tmp_path / "m.gguf")))
    tensors = {name: tensor for name, tensor in source.file.tensors.items() if "attn_v_b" not in name}
    broken = dataclasses.replace(source, file=dataclasses.replace(source.file, tensors=tensors))
    with pytest.raises(CheckpointError, match=r"no tensor blk\.0\.attn_v_b\.weight"):
        list(broken)


@pytest.mark.parametrize(
    ("family", "name", "shape", "says"),
    [
        ("kimi_k2", "blk.0.attn_k_b.weight", (4, 16, 32), "do not belong together"),
        ("kimi_k2", "blk.0.attn_v_b.weight", (48, 32), "do not belong together"),
        ("mixtral", "blk.0.ffn_up_exps.weight", (18432,), "not one row for each expert"),
    ],
)
def test_a_tensor_of_another_form_is_refused(family, name, shape, says, folder_of, tmp_path):
    source = open_gguf(open_checkpoint(write_gguf(folder_of(family), tmp_path / "m.gguf")))
    tensors = {**source.file.tensors, name: dataclasses.replace(source.file.tensors[name], shape=shape)}
    with pytest.raises(CheckpointError, match=says):
        list(dataclasses.replace(source, file=dataclasses.replace(source.file, tensors=tensors)))


@pytest.mark.parametrize(
    ("architecture", "keys", "says"),
    [
        ("qwen2", {"block_count": 2**31}, "block_count is 2147483648, not 1 to 4096"),
        ("qwen2", {"attention__head_count": 0}, "head_count is 0"),
        ("gemma3", {"attention__sliding_window_pattern": 0}, "pattern is 0, less than 1"),
        ("gemma3", {"attention__sliding_window_pattern": "x"}, "pattern is 'x', not a number"),
        ("gemma3", {"attention__sliding_window": "x"}, "window is 'x', not a number"),
        ("glm4moe", {"rope__dimension_count": "x"}, "dimension_count is 'x', not a number"),
        ("deepseek2", {"attention__kv_lora_rank": 32, "rope__dimension_count": 8}, "key_length_mla is None"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_in_one_line(architecture, keys, says, tmp_path):
    with pytest.raises(CheckpointError, match=says) as caught:
        config_of(tmp_path, architecture, **keys)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def latent_bytes(folder_of, tmp_path_factory):
    path = tmp_path_factory.mktemp("flipped") / "m.gguf"
    keys = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.chat_template")
    return write_gguf(folder_of("kimi_k2"), path, without=keys).read_bytes()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_flipped_bytes_of_a_header_make_a_config_or_an_error_but_never_a_crash(latent_bytes, tmp_path_factory, data):
    content = bytearray(latent_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(4, 5000))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flipped") / "f.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
        source = open_gguf(checkpoint)
        assert len(source.names()) >= len([name for name, _ in source])
    except CheckpointError:
        return


def test_a_mixtral_file_with_each_expert_by_itself_gives_the_same_names(folder_of, tmp_path):
    source = open_gguf(open_checkpoint(write_gguf(folder_of("mixtral"), tmp_path / "m.gguf")))
    tensors = {}
    for name, tensor in source.file.tensors.items():
        for expert in range(4) if "_exps" in name else ():
            tensors[name.replace("_exps", f".{expert}")] = dataclasses.replace(
                tensor, name=name.replace("_exps", f".{expert}"), shape=tensor.shape[1:]
            )
        if "_exps" not in name:
            tensors[name] = tensor
    apart = dataclasses.replace(source, file=dataclasses.replace(source.file, tensors=tensors))
    assert apart.names() == source.names()


def test_blocks_that_predict_further_tokens_are_not_read(folder_of, tmp_path):
    checkpoint = open_checkpoint(write_gguf(folder_of("glm4_moe"), tmp_path / "m.gguf"))
    source = open_gguf(checkpoint)
    assert "blk.3.attn_q.weight" in checkpoint.gguf.tensors
    assert checkpoint.config["num_hidden_layers"] == 3
    assert not any("layers.3." in name or name.startswith("blk.3.") for name in source.names())
    assert source.num_bytes < sum(tensor.num_bytes for tensor in checkpoint.gguf.tensors.values())


def make_header(path, architecture, **keys):
    """A GGUF of nothing but a header; two underscores in the name of a key are a dot."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {"block_count": 7, "embedding_length": 64, "feed_forward_length": 96, "context_length": 512}
    sizes |= {"vocab_size": 384, "attention__head_count": 4, "attention__layer_norm_rms_epsilon": 1e-6}
    if architecture not in ("qwen2", "qwen3", "gemma3"):
        sizes |= {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
    if architecture in ("gemma3", "gpt-oss"):
        sizes["attention__sliding_window"] = 13
    for key, value in (sizes | keys).items():
        name = key.replace("__", ".")
        kind = {bool: writer.add_bool, float: writer.add_float32, list: writer.add_array, str: writer.add_string}
        full_name = name if name.startswith(("tokenizer.", "split.")) else f"{architecture}.{name}"
        kind.get(type(value), writer.add_uint32)(full_name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def config_of(path, architecture, **keys):
    return open_checkpoint(make_header(path / "h.gguf", architecture, **keys)).config


def test_gemma_layers_follow_the_published_pattern_or_the_headers(tmp_path):
    def full_layers(**keys):
        types = config_of(tmp_path, "gemma3", **keys)["layer_types"]
        return [layer_id for layer_id, kind in enumerate(types) if kind == "full_attention"]

    assert full_layers() == [5]
    assert full_layers(attention__sliding_window_pattern=3) == [2, 5]
    assert full_layers(attention__sliding_window_pattern=1) == list(range(7))
    assert full_layers(attention__sliding_window_pattern=[True, False] * 3 + [True]) == [1, 3, 5]
    assert full_layers(attention__sliding_window=0) == list(range(7))


def test_a_file_may_have_one_block_and_4096(tmp_path):
    for blocks in (1, 4096):
        assert config_of(tmp_path, "qwen2", block_count=blocks)["num_hidden_layers"] == blocks


def test_gemma_27b_scales_by_another_width_than_that_of_its_heads(tmp_path):
    sizes = {"attention__key_length": 128, "embedding_length": 5376, "attention__head_count": 32}
    assert config_of(tmp_path, "gemma3", block_count=62, **sizes)["query_pre_attn_scalar"] == 168
    assert config_of(tmp_path, "gemma3", block_count=48, **sizes)["query_pre_attn_scalar"] == 128


def test_gemma_files_of_before_local_bases_were_written_have_the_published_ones(tmp_path):
    config = config_of(tmp_path, "gemma3", rope__freq_base=5e5)
    assert (config["rope_parameters"]["rope_theta"], config["rope_local_base_freq"]) == (5e5, 1e4)
    assert config_of(tmp_path, "gemma3", rope__freq_base_swa=3e4)["rope_local_base_freq"] == 3e4


def test_the_weights_of_chosen_experts_sum_to_one_in_qwen3moe_unless_the_header_says_otherwise(tmp_path):
    assert config_of(tmp_path, "qwen3moe")["norm_topk_prob"] is True
    assert config_of(tmp_path, "qwen3moe", expert_weights_norm=False)["norm_topk_prob"] is False


@pytest.mark.parametrize(("family", "normalized"), [("glm4_moe", True), ("glm4_moe_lite", False)])
def test_a_file_that_does_not_say_whether_weights_of_experts_sum_to_one_has_what_its_converter_left_out(
    family, normalized, folder_of, tmp_path
):
    names = tuple(f"{name}.expert_weights_norm" for name in ("glm4moe", "deepseek2"))
    path = write_gguf(folder_of(family), tmp_path / "m.gguf", without=names)
    assert open_checkpoint(path).config["norm_topk_prob"] is normalized


def test_biases_of_queries_and_keys_come_back_in_their_order(tmp_path):
    """llama.cpp keeps the pairs of a rotation as neighbors, in biases too."""
    folder = make_tiny("llama", tmp_path / "m", attention_bias=True)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith("_proj.bias")]:
        tensors[name] = torch.linspace(-1, 1, len(tensors[name]))
    save_file(tensors, file)
    assert_equal_models(write_gguf(folder, tmp_path / "m.gguf"), folder)


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe", "gpt-oss"])
def test_routing_that_the_model_does_not_have_is_refused(architecture, tmp_path):
    with pytest.raises(CheckpointError, match=rf"{architecture}\.expert_gating_func is sigmoid, but .* have softmax"):
        config_of(tmp_path, architecture, expert_gating_func=2)


def test_routing_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"minimax-m2\.expert_gating_func is 9; supported: 1 and 3"):
        config_of(tmp_path, "minimax-m2", expert_gating_func=9)


def test_sigmoid_scores_make_a_deepseek2_file_one_of_the_third_generation(tmp_path):
    latents = {"attention__kv_lora_rank": 32, "rope__dimension_count": 8, "attention__key_length_mla": 24}
    latents |= {"attention__value_length_mla": 12, "attention__key_length": 40, "attention__value_length": 32}
    second = config_of(tmp_path, "deepseek2", expert_gating_func=1, expert_group_count=4, **latents)
    assert (second["architectures"], second["topk_method"]) == (["DeepseekV2ForCausalLM"], "group_limited_greedy")
    assert (second["qk_nope_head_dim"], second["v_head_dim"], second["num_key_value_heads"]) == (16, 12, 4)
    assert config_of(tmp_path, "deepseek2", **latents)["topk_method"] == "greedy"
    third = config_of(tmp_path, "deepseek2", expert_gating_func=2, **latents)
    assert third["architectures"] == ["DeepseekV3ForCausalLM"]


def test_keys_that_change_nothing_here_are_named_in_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        config_of(tmp_path, "qwen2", attention__scale=0.3, rope__scaling__attn_factor=2.0)
    [record] = [record.getMessage() for record in caplog.records]
    assert "qwen2.attention.scale" in record
    assert "qwen2.rope.scaling.attn_factor" in record


def test_nothing_is_left_unread_in_what_the_converter_writes(folder_of, tmp_path, caplog):
    for family in FAMILIES:
        open_checkpoint(write_gguf(folder_of(family), tmp_path / "m.gguf"))
    assert not [record for record in caplog.records if record.name.startswith("atom_models")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_header_gives_no_field_that_its_model_does_not_know(family, folder_of, tmp_path):
    checkpoint = open_checkpoint(write_gguf(folder_of(family), tmp_path / "m.gguf"))
    assert unknown_fields(find_architecture(checkpoint.architecture).config_class, checkpoint.config) == ()


def test_one_part_of_a_split_model_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match=r"one of 3 parts of a model; join them with .*--merge"):
        config_of(tmp_path, "qwen2", split__count=3)


def test_yarn_of_a_header_has_all_its_parameters(tmp_path):
    scaling = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__yarn_beta_fast": 16.0}
    scaling |= {"rope__scaling__original_context_length": 32, "rope__scaling__yarn_attn_factor": 1.2}
    rope = config_of(tmp_path, "qwen3", rope__scaling__yarn_beta_slow=2.0, **scaling)["rope_parameters"]
    assert rope == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.2,
    }


def test_a_scaling_of_positions_that_nobody_computes_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"qwen3\.rope\.scaling\.type is 'spiral'; supported: none, linear"):
        config_of(tmp_path, "qwen3", rope__scaling__type="spiral")


@pytest.mark.parametrize("written", [1e-5, 1e-6, 0.1, 2.827, 1.0, 150000.0, 1 / 3])
def test_floats_of_a_header_are_the_decimals_that_were_written(written):
    stored = torch.tensor(written, dtype=torch.float32).item()
    assert shortest_decimal(stored) == pytest.approx(written, rel=1e-7)
    assert torch.tensor(shortest_decimal(stored), dtype=torch.float32).item() == stored
    if written != 1 / 3:
        assert shortest_decimal(stored) == written


def test_a_float_that_float32_cannot_hold_stays_as_it_is():
    assert shortest_decimal(1e300) == 1e300


@pytest.mark.parametrize(
    ("ends", "kinds", "found"),
    [
        (["<end_of_turn>"], [3], (2, 5)),
        (["<|return|>", "<|call|>"], [3, 3], (2, 5, 6)),
        # Text that only looks so is no end.
        (["<end_of_turn>"], [1], (2,)),
        (["<|end|>"], [3], (2,)),
        # Nobody says of what kind it is.
        (["<end_of_turn>"], [], (2,)),
    ],
)
def test_tokens_that_end_turns_are_known_by_their_text(tmp_path, ends, kinds, found):
    tokens = ["a", "b", "</s>", "c", "d", *ends]
    checkpoint = open_checkpoint(
        make_header(
            tmp_path / "h.gguf",
            "qwen2",
            **{
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": [1, 1, 3, 1, 1, *kinds],
                "tokenizer.ggml.eos_token_id": 2,
            },
        )
    )
    assert checkpoint.eos_token_ids == found
