"""GGUF weights: every format dequantizes as the gguf library says, and a GGUF model equals its safetensors twin."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as library_dequantize
from gguf.quants import quantize as library_quantize

from atom_models import load_model, open_checkpoint
from atom_models.hub import find_cached
from atom_models.weights import dequantize
from atom_models.weights.gguf_source import open_gguf
from tiny_models import make_tiny_llama, random_llama_weights

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    _, _, layer_id, rest = stem.split(".", 3)
    return f"blk.{layer_id}.{BLOCK[rest]}.{kind}"


def permute_rows(weight, num_heads):
    """As llama.cpp's converter stores queries and keys."""
    rows = weight.shape[0]
    return weight.reshape(num_heads, 2, rows // num_heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, folder, *, quant="F32", rope_freqs=None, **metadata):
    """A GGUF of a tiny checkpoint, and the weights as they come out of its quantization."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        writer.add_uint32(key, value)
    kind = gguf.GGMLQuantizationType[quant]
    stored = {}
    for name, weight in random_llama_weights(config).items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        array = permute_rows(weight, config[heads]) if heads else weight
        if array.ndim > 1 and quant != "F32":
            blocks = library_quantize(array, kind)
            writer.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
            values = library_dequantize(blocks, kind)
        else:
            writer.add_tensor(gguf_name(name), array)
            values = array
        if heads:
            shape = (config[heads], -1, 2, weight.shape[-1])
            values = values.reshape(shape).swapaxes(1, 2).reshape(weight.shape)
        stored[name] = torch.from_numpy(np.ascontiguousarray(values))
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_weight_comes_out_as_the_gguf_library_dequantizes_it(tmp_path, quant):
    folder = make_tiny_llama(tmp_path / "model")
    stored = write_gguf(tmp_path / "m.gguf", folder, quant=quant)
    loaded = dict(open_gguf(open_checkpoint(tmp_path / "m.gguf")))
    assert loaded.keys() == stored.keys()
    for name, expected in stored.items():
        assert torch.equal(loaded[name].float(), expected), name


@pytest.mark.parametrize("quant", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_formats_that_only_the_library_knows_go_through_it(quant):
    kind = gguf.GGMLQuantizationType[quant]
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, 6 * num_bytes, dtype=np.uint8)
    expected = library_dequantize(raw, kind).reshape(2, 3 * block)
    actual = dequantize(memoryview(raw.tobytes()), quant, (2, 3 * block))
    assert np.array_equal(actual.numpy(), expected, equal_nan=True)


def test_a_format_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match="does not know the format Q9_X"):
        dequantize(memoryview(bytes(32)), "Q9_X", (1,))


@pytest.mark.parametrize("tie", [False, True])
def test_a_gguf_model_gives_the_logits_of_its_safetensors_twin(tmp_path, tie):
    folder = make_tiny_llama(tmp_path / "model", tie=tie)
    write_gguf(tmp_path / "m.gguf", folder)
    tokens = [[3, 1, 4, 1, 5, 9, 2, 6]]
    twin, model = load_model(folder), load_model(tmp_path / "m.gguf")
    assert model.context.dtype == torch.float32
    assert torch.equal(model.logits(tokens)[0], twin.logits(tokens)[0])


def test_frequency_divisors_of_llama3_are_honored(tmp_path):
    from atom_kernels.rotary import RopeConfig, rope_frequencies

    folder = make_tiny_llama(tmp_path / "model", rope="llama3")
    parameters = open_checkpoint(folder).config["rope_parameters"]
    sizes = {"head_dim": 16, "max_position_embeddings": 512}
    scaled, _ = rope_frequencies(RopeConfig.from_parameters(parameters, **sizes))
    plain = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
    unscaled, _ = rope_frequencies(RopeConfig.from_parameters(plain, **sizes))
    write_gguf(tmp_path / "m.gguf", folder, rope_freqs=(unscaled / scaled).numpy())
    tokens = [list(range(3, 150))]
    expected = load_model(folder).logits(tokens)[0]
    assert torch.allclose(load_model(tmp_path / "m.gguf").logits(tokens)[0], expected, atol=1e-4)


def test_end_of_turn_tokens_end_a_text_too(tmp_path):
    write_gguf(tmp_path / "m.gguf", make_tiny_llama(tmp_path / "model"), **{"tokenizer.ggml.eot_token_id": 9})
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.eos_token_ids == (2, 9)
    assert checkpoint.max_model_len == 512


def test_a_folder_with_one_gguf_file_stands_for_it(tmp_path):
    write_gguf(tmp_path / "m.gguf", make_tiny_llama(tmp_path / "model"))
    assert open_checkpoint(tmp_path).path == tmp_path / "m.gguf"


@pytest.mark.slow
def test_the_default_models_weights_equal_those_that_transformers_dequantizes():
    path = find_default_model()
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).state_dict()
    ours = dict(open_gguf(open_checkpoint(path)))
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


@pytest.mark.slow
def test_the_default_model_knows_a_capital():
    model = load_model(find_default_model(), dtype="float32")
    vocabulary = {text: index for index, text in enumerate(model.checkpoint.gguf.metadata["tokenizer.ggml.tokens"])}
    tokens = [vocabulary[text] for text in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]
    assert int(model.logits([tokens])[0][-1].argmax()) == vocabulary["ĠParis"]


def find_default_model() -> Path:
    """The cached GGUF of the default model; skips where it was never downloaded."""
    path = find_cached("smollm2")
    if path is None:
        pytest.skip("the default model is not in the cache: run `atom models pull smollm2`")
    return path
