"""GGUF weights: every format dequantizes as the gguf library says, and a GGUF model equals its safetensors twin."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as library_dequantize
from safetensors.torch import load_file

from atom_models import load_model, open_checkpoint
from atom_models.hub import find_cached
from atom_models.weights import dequantize
from atom_models.weights.gguf_source import open_gguf
from converted_gguf import write_gguf
from tiny_models import make_tiny_llama


@pytest.mark.parametrize(("name", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_numbers_keep_their_format_and_their_memory(name, dtype):
    numbers = torch.tensor([[1.5, -2.0, 0.25], [3.0, 0.0, -0.5]], dtype=dtype)
    raw = bytearray(numbers.view(torch.uint8).numpy().tobytes())
    found = dequantize(memoryview(raw), name, (2, 3))
    assert found.dtype is dtype
    assert torch.equal(found, numbers)
    raw[:] = bytes(len(raw))
    assert not found.any()


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_weight_comes_out_as_the_gguf_library_dequantizes_it(tmp_path, quant):
    folder = make_tiny_llama(tmp_path / "model")
    loaded = weights_of(write_gguf(folder, tmp_path / "q.gguf", quant=quant))
    expected = weights_of(write_gguf(folder, tmp_path / "f.gguf", quant=quant, dequantized=True))
    assert loaded.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(loaded[name].float(), weight), name


def test_every_weight_of_a_float32_file_is_the_folders(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", attention_bias=True)
    loaded, stored = weights_of(write_gguf(folder, tmp_path / "m.gguf")), load_file(folder / "model.safetensors")
    assert loaded.keys() == stored.keys()
    for name, weight in stored.items():
        assert torch.equal(loaded[name], weight), name


def weights_of(path):
    return dict(open_gguf(open_checkpoint(path)))


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
    write_gguf(folder, tmp_path / "m.gguf")
    tokens = [[3, 1, 4, 1, 5, 9, 2, 6]]
    twin, model = load_model(folder), load_model(tmp_path / "m.gguf")
    assert model.context.dtype == torch.float32
    assert torch.equal(model.logits(tokens)[0], twin.logits(tokens)[0])


def test_frequency_divisors_of_llama3_are_honored(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", rope="llama3")
    tokens = [list(range(3, 150))]
    expected = load_model(folder).logits(tokens)[0]
    actual = load_model(write_gguf(folder, tmp_path / "m.gguf")).logits(tokens)[0]
    assert torch.allclose(actual, expected, atol=1e-4)


def test_end_of_turn_tokens_end_a_text_too(tmp_path):
    folder, keys = make_tiny_llama(tmp_path / "model"), {"tokenizer.ggml.eot_token_id": 9}
    write_gguf(folder, tmp_path / "m.gguf", metadata=keys)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.eos_token_ids == (2, 9, 0)
    assert checkpoint.max_model_len == 512


def test_a_folder_with_one_gguf_file_stands_for_it(tmp_path):
    write_gguf(make_tiny_llama(tmp_path / "model"), tmp_path / "m.gguf")
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
