"""GGUF weights that stay packed: the file's own numbers, whichever layers, ranks and kernels hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as library_dequantize

from atom_kernels.formats import Integers, Plain
from atom_kernels.native import native_unavailable
from atom_kernels.protocols.collectives import SingleRank
from atom_models import (
    BuildContext,
    CheckpointError,
    build_model,
    load_model,
    load_weights,
    model_requirements,
    open_checkpoint,
)
from atom_models.groups import Groups
from atom_models.layers import ColumnParallelLinear, LMHead, RowParallelLinear, VocabularyEmbedding
from atom_models.model import stored_quantization
from atom_models.quantization import GGUFQuantization
from atom_models.quantization.layouts import GGUF_PACKED, GGUFLayout
from converted_gguf import write_gguf
from live_storage import LiveStorages
from packed_bfloat16 import packed_bfloat16
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [11, 12, 13]]
DTYPES = ["float32", pytest.param("bfloat16", marks=packed_bfloat16)]
needs_kernel = pytest.mark.skipif(bool(native_unavailable("linear_quantized")), reason="no C kernels here")


def random_blocks(type_name: str, num_rows: int, num_columns: int) -> np.ndarray:
    """Any bytes, under scales that are numbers."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(len(type_name) + num_columns)
    blocks = rng.integers(0, 256, (num_rows * num_columns // block, num_bytes), dtype=np.uint8)
    for start in (num_bytes - 2,) if type_name == "Q6_K" else (0, 2):
        if start == 0 or type_name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K"):
            scales = rng.standard_normal(len(blocks)).astype(np.float16)
            blocks[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("type_name", sorted(GGUF_PACKED))
def test_packed_numbers_are_those_of_the_gguf_library_bit_for_bit(type_name):
    blocks, layout = random_blocks(type_name, 6, 512), GGUFLayout(type_name)
    expected = library_dequantize(blocks, gguf.GGMLQuantizationType[type_name])
    parts = layout.to_parts({"weight": torch.from_numpy(blocks)}, 6, 512)
    actual = layout.weight_format.dequantize(parts, 512)
    assert actual.shape == (6, 512)
    assert np.array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("type_name", sorted(GGUF_PACKED))
def test_the_bytes_of_a_row_are_those_of_its_blocks(type_name):
    block, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    assert GGUFLayout(type_name).expected(7, 2 * block)["weight"].shape == (7, 2 * num_bytes)


@pytest.mark.parametrize(("type_name", "place"), [("Q4_1", 0), ("Q4_1", 2), ("Q6_K", 208)])
def test_a_scale_that_is_no_number_is_refused(type_name, place):
    blocks = random_blocks(type_name, 2, 256)
    blocks[1, place : place + 2] = np.array([np.nan], dtype=np.float16).view(np.uint8)
    with pytest.raises(CheckpointError, match=f"{type_name}: a scale is not a finite number"):
        GGUFLayout(type_name).to_parts({"weight": torch.from_numpy(blocks)}, 2, 256)


def make_llama(folder, quant, **sizes):
    """A file of a Llama whose matrices all divide into blocks."""
    sizes = {"hidden": 256, "intermediate": 512} | sizes
    return write_gguf(make_tiny_llama(folder / "model", **sizes), folder / f"{quant}.gguf", quant=quant)


def assert_as_near_as(packed, plain, path, dtype):
    """Logits of packed numbers are as near to those of the exact numbers as logits of plain ones are."""
    exact = load_model(path, "float32", quantization="none")
    actual, rounded, expected = (torch.cat(one.logits(TOKENS)) for one in (packed, plain, exact))
    if dtype == "float32":  # a minimum is added in one rounding by the kernel
        assert torch.allclose(actual, expected, atol=1e-4 * float(expected.std()), rtol=0)
    else:
        assert (actual - expected).square().mean() <= 2 * (rounded - expected).square().mean()


def assert_held_packed(model, quant):
    projections = [layer for name, layer in model.model.named_modules() if name.endswith("_proj")]
    assert {weights.stored for layer in projections for weights in layer.weights()} == {quant}
    formats = {part.problem.weight_format for layer in projections for part in layer._parts}
    assert formats == {GGUFLayout(quant).weight_format}


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_a_packed_model_gives_the_logits_of_its_plain_numbers(quant, dtype, tmp_path):
    """Rows of queries and keys lie in another order in the file, which makes any mistake there show."""
    path = make_llama(tmp_path, quant)
    packed, plain = load_model(path, dtype), load_model(path, dtype, quantization="none")
    assert_held_packed(packed, quant)
    assert_as_near_as(packed, plain, path, dtype)


@needs_kernel
def test_types_of_merged_shards_that_differ_are_packed_side_by_side(tmp_path):
    """As files of several types have them: values in more bits than queries and keys."""
    folder = make_tiny_llama(tmp_path / "model", hidden=256, intermediate=512)
    path = write_gguf(folder, tmp_path / "m.gguf", quant="Q4_K", others={"attn_v": "Q6_K", "ffn_up": "F16"})
    packed, plain = load_model(path, "float32"), load_model(path, "float32", quantization="none")
    layer = packed.model.model.layers[0]
    assert [weights.stored for weights in layer.self_attn.qkv_proj.weights()] == ["Q4_K", "Q6_K"]
    gate, up = layer.mlp.gate_up_proj._parts
    assert (gate.problem.weight_format, up.problem.weight_format) == (
        GGUFLayout("Q4_K").weight_format,
        Plain(torch.float32),
    )
    for actual, expected in zip(packed.logits(TOKENS), plain.logits(TOKENS), strict=True):
        assert torch.allclose(actual, expected, atol=1e-4 * float(expected.std()), rtol=0)


def test_types_that_no_format_holds_are_plain_numbers(tmp_path):
    path = make_llama(tmp_path, "Q3_K")
    assert stored_quantization(open_checkpoint(path)).types == {}
    packed, plain = load_model(path, "float32"), load_model(path, "float32", quantization="none")
    assert torch.equal(packed.logits(TOKENS)[0], plain.logits(TOKENS)[0])


def test_packed_weights_can_be_rounded_to_another_format_from_their_plain_numbers(tmp_path):
    path = make_llama(tmp_path, "Q4_1")
    model = load_model(path, "float32", quantization="int8")
    assert model.model.model.layers[0].mlp.down_proj._parts[0].problem.weight_format == Integers(8)


def test_plain_numbers_are_had_for_the_asking(tmp_path):
    model = load_model(make_llama(tmp_path, "Q4_1"), "float32", quantization="none")
    assert model.model.model.layers[0].mlp.down_proj._parts[0].problem.is_plain


@needs_kernel
@packed_bfloat16
@pytest.mark.parametrize("quant", ["Q4_1", "Q4_K", "Q5_K", "Q6_K"])
def test_loading_takes_no_more_than_the_packed_model_and_one_layer(quant, tmp_path):
    checkpoint = open_checkpoint(make_llama(tmp_path, quant, intermediate=1024, num_layers=4))
    context = BuildContext(dtype=torch.bfloat16, quantization=stored_quantization(checkpoint))
    model = build_model(checkpoint, context)
    layers = [tensor for name, tensor in checkpoint.gguf.tensors.items() if name.startswith("blk.0.")]
    one_layer = sum(2 * int(np.prod(tensor.shape)) for tensor in layers)
    with LiveStorages() as live:
        load_weights(model, checkpoint, progress=False)
    assert live.peak <= live.num_bytes + one_layer


@needs_kernel
@pytest.mark.parametrize("quant", ["Q4_K", "Q8_0"])
def test_experts_of_a_file_stay_packed(quant, tmp_path):
    folder = make_tiny("qwen3_moe", tmp_path / "model", hidden_size=256, moe_intermediate_size=256)
    path = write_gguf(folder, tmp_path / "m.gguf", quant=quant)
    packed, plain = load_model(path, "float32"), load_model(path, "float32", quantization="none")
    experts = packed.model.model.layers[0].mlp.experts
    assert {matrix.held for matrix in experts.problem.matrices.values()} == {GGUFLayout(quant).weight_format}
    for actual, expected in zip(packed.logits(TOKENS), plain.logits(TOKENS), strict=True):
        assert torch.allclose(actual, expected, atol=1e-4 * float(expected.std()), rtol=0)


@dataclass
class OneOf(SingleRank):
    """A rank by itself: what it would exchange stays its own part."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x


def layer_on(rank: int, kind: type, type_name: str) -> Any:
    """A linear of 512 inputs and 12 outputs of which four ranks hold parts, with its weights."""
    quantization = GGUFQuantization({"m.a_proj": type_name})
    context = BuildContext(dtype=torch.float32, quantization=quantization, groups=Groups(OneOf(rank, 4)))
    layer = kind(512, 12, context, prefix="m.a_proj")
    layer.load_shard("m.a_proj.weight", torch.from_numpy(random_blocks(type_name, 12, 512)))
    layer.finish()
    return layer


@pytest.mark.parametrize("type_name", ["Q4_1", "Q4_K", "Q5_K", "Q6_K"])
def test_ranks_share_outputs_and_inputs_even_within_a_block(type_name):
    """128 inputs a rank are half a block of 256."""
    weight = library_dequantize(random_blocks(type_name, 12, 512), gguf.GGMLQuantizationType[type_name])
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    expected = x @ torch.from_numpy(weight).t()
    by_outputs = torch.cat([layer_on(rank, ColumnParallelLinear, type_name)(x) for rank in range(4)], dim=1)
    pieces = [layer_on(rank, RowParallelLinear, type_name)(part) for rank, part in enumerate(x.chunk(4, 1))]
    for actual in (by_outputs, sum(pieces)):
        assert torch.allclose(actual, expected, atol=1e-4 * float(expected.std()), rtol=0)


def test_a_plan_counts_packed_matrices_as_they_are_held(tmp_path):
    """Six bits a number of Q4_K, ten of Q6_K: a scale and a minimum are float32 here."""
    sizes = {}
    for quant in ("F16", "Q4_K", "Q6_K"):
        (tmp_path / quant).mkdir()
        needs = model_requirements(open_checkpoint(make_llama(tmp_path / quant, quant)))
        sizes[quant] = needs.weight_bytes.get("gguf"), needs.weight_bytes["bfloat16"], needs.num_linear_parameters
    assert sizes["F16"][0] is None
    for quant, bits in (("Q4_K", 6), ("Q6_K", 10)):
        packed, plain, linear = sizes[quant]
        # The head is a matrix of the file as well.
        head = (plain - packed) / (16 - bits) * 8 - linear
        assert head == 256 * 512


@needs_kernel
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_that_the_head_shares_stays_packed(quant, dtype, tmp_path):
    path = make_llama(tmp_path, quant, tie=True)
    packed, plain = load_model(path, dtype), load_model(path, dtype, quantization="none")
    [table], [head] = packed.model.model.embed_tokens.weights(), packed.model.lm_head.weights()
    wanted = GGUFLayout(quant).weight_format.name
    assert (table.stored, table.held().held, head.held().held) == (quant, wanted, wanted)
    ids = torch.tensor([3, 511, 0, 3])
    rows = [one.model.model.embed_tokens(ids) for one in (packed, plain)]
    assert rows[0].dtype is getattr(torch, dtype)
    assert torch.equal(*rows)
    assert_as_near_as(packed, plain, path, dtype)


def test_a_table_whose_head_has_a_matrix_of_its_own_is_plain(tmp_path):
    """Looking up rows is no faster from packed ones."""
    model = load_model(make_llama(tmp_path, "Q8_0"), "float32")
    assert model.model.model.embed_tokens.weights()[0].held().held == "float32"


@needs_kernel
def test_ranks_share_a_packed_table_and_its_head():
    """Rows 0 to 6 and 7 to 12, of which the last rank's are padded."""
    blocks = random_blocks("Q8_0", 13, 64)
    weight = torch.from_numpy(library_dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    ids, x, rows, logits = torch.tensor([0, 6, 7, 12]), torch.randn(3, 64), torch.zeros(4, 64), []
    for rank in range(2):
        quantization = GGUFQuantization({"e": "Q8_0"})
        context = BuildContext(dtype=torch.float32, quantization=quantization, groups=Groups(OneOf(rank, 2)))
        table = VocabularyEmbedding(13, 64, context, prefix="e")
        head = LMHead(64, 13, context, tied_to=table)
        table.load_shard("e.weight", torch.from_numpy(blocks))
        table.finish()
        assert head._parts[0].problem.weight_format == Integers(8, 32, scale_dtype=torch.float16)
        rows += table(ids)
        logits.append(head._apply(x))
    assert torch.equal(rows, weight[ids])
    assert torch.allclose(torch.cat(logits, dim=1)[:, :13], x @ weight.t(), atol=1e-4 * float(weight.std()) * 8, rtol=0)
