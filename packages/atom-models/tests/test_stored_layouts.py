"""Published layouts of quantized matrices: their numbers equal those of the library that defines each, bit for bit."""

from __future__ import annotations

import json
import re

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts import (
    AwqLayout,
    Bitsandbytes4Layout,
    Float8Layout,
    GptqLayout,
    Int8Layout,
    Mxfp4Layout,
    Nvfp4Layout,
    PackedInt4Layout,
    PackedInt8Layout,
    StoredLayout,
)
from quantized_checkpoints import NF4

N, K = 192, 320
# Written by bitsandbytes 0.50.2, quantize_4bit(compress_statistics=True), of a matrix [4, 40].
NF4_CODES = (
    "04c16e29f3b05d17e29f3c05d18e2af4c16e18e3b05d17e29f3b05d18e2af4c16d18e3b04c17e29f3b05d17e2af4c06d18e2a04c16e29f3b0"
    "5d17e29f3c05d18e2af4c16e18e3b05d17e29f3b05d18e2"
)
NF4_STATE = (
    b'{"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [4, 40], "nested_blocksize": 256, '
    b'"nested_dtype": "float32", "nested_offset": 1.9166666269302368}'
)
NF4_NUMBERS = {
    0: -1.99888014793396,
    1: -0.568564236164093,
    39: -0.7893927097320557,
    40: 0.6754520535469055,
    63: -1.3916059732437134,
    64: -0.06903442740440369,
    127: 0.060338035225868225,
    128: 2.163881301879883,
    159: -1.5715954303741455,
}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def random(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def scales(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Positive, over many powers of two."""
    return random(*shape, seed=1).exp().to(dtype)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def words(*shape: int) -> torch.Tensor:
    return integers(-(2**31), 2**31, *shape, dtype=torch.int32)


def numbers(layout: StoredLayout, tensors: dict[str, torch.Tensor], rows: int = N, columns: int = K) -> torch.Tensor:
    expected = layout.expected(rows, columns)
    assert {name for name in tensors if name not in layout.ignored} == set(expected)
    for name, one in expected.items():
        assert one.why_not(tensors[name].shape, tensors[name].dtype) is None
    parts = layout.to_parts(tensors, rows, columns)
    held = layout.weight_format.parts
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in parts.items() if name in held} == {
        name: (part.shape(rows, columns), part.dtype) for name, part in held.items()
    }
    return layout.weight_format.dequantize(parts, columns)


def by_compressed_tensors(layout: str, tensors: dict[str, torch.Tensor], **weights) -> torch.Tensor:
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(layout)
    assert isinstance(compressor, type)
    return compressor.decompress(dict(tensors), scheme)["weight"]


FP8 = {"num_bits": 8, "type": "float"}
BLOCK = FP8 | {"strategy": "block", "block_structure": [128, 128]}


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(
    ("tile", "shape", "strategy"),
    [
        (None, (1,), FP8 | {"strategy": "tensor"}),
        (None, (N, 1), FP8 | {"strategy": "channel"}),
        ((128, 128), (2, 3), BLOCK),  # tiles at both edges are incomplete
    ],
)
def test_fp8_equals_compressed_tensors(tile, shape, strategy, dtype):
    tensors = {"weight": random(N, K).to(torch.float8_e4m3fn), "weight_scale": scales(*shape, dtype=dtype)}
    expected = by_compressed_tensors("float-quantized", tensors, **strategy)
    assert expected.dtype is dtype
    assert torch.equal(numbers(Float8Layout(tile), tensors).to(dtype), expected)


def test_fp8_equals_transformers_for_whole_tiles():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, scale = random(256, 384).to(torch.float8_e4m3fn), scales(2, 3, dtype=F32)
    ours = numbers(
        Float8Layout((128, 128), "weight_scale_inv"), {"weight": weight, "weight_scale_inv": scale}, 256, 384
    )
    dequantize = Fp8Dequantize(None)._dequantize_one  # pyright: ignore[reportArgumentType]
    assert torch.equal(ours.bfloat16(), dequantize(weight, scale, torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 128, 576])
def test_fp8_tiles_at_the_edge_belong_to_fewer_rows(rows):
    """576 rows are those of DeepSeek's kv_a_proj_with_mqa: the last of five tiles has 64."""
    weight, scale = random(rows, 200).to(torch.float8_e4m3fn), scales(-(-rows // 128), 2, dtype=F32)
    expected = weight.double() * scale.double().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :200]
    ours = numbers(Float8Layout((128, 128)), {"weight": weight, "weight_scale": scale}, rows, 200)
    assert torch.equal(ours, expected.float())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_fp8_scales_may_be_stored_as_exponents(dtype):
    weight = random(128, 128).to(torch.float8_e4m3fn)
    scale = torch.tensor([[125]], dtype=torch.uint8).view(dtype)
    ours = numbers(Float8Layout((128, 128)), {"weight": weight, "weight_scale": scale}, 128, 128)
    assert torch.equal(ours, weight.float() / 4)


def test_fp8_every_byte_is_the_number_that_torch_reads():
    weight = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(2, 128)
    scale = torch.tensor([2.0, 0.5])
    ours = numbers(Float8Layout(), {"weight": weight, "weight_scale": scale}, 2, 128)
    assert torch.equal(ours.nan_to_num(7), (weight.float() * scale[:, None]).nan_to_num(7))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("shape", "strategy"), [((1,), "tensor"), ((N, 1), "channel")])
def test_int8_equals_compressed_tensors(shape, strategy, dtype):
    tensors = {
        "weight": integers(-128, 128, N, K, dtype=torch.int8),
        "weight_scale": scales(*shape, dtype=dtype),
    }
    expected = by_compressed_tensors("int-quantized", tensors, num_bits=8, type="int", strategy=strategy)
    assert torch.equal(numbers(Int8Layout(), tensors).to(dtype), expected)


def test_int8_of_bitsandbytes_stores_the_largest_magnitude():
    tensors = {"weight": integers(-127, 128, N, K, dtype=torch.int8), "SCB": scales(N, dtype=F32)}
    expected = tensors["weight"].float() * (tensors["SCB"] / 127)[:, None]
    assert torch.equal(numbers(Int8Layout("SCB", 127.0), tensors), expected)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("group", [64, None])
def test_packed_int8_equals_compressed_tensors(group, dtype):
    tensors = {
        "weight_packed": words(N, K // 4),
        "weight_scale": scales(N, 1 if group is None else K // group, dtype=dtype),
        "weight_shape": torch.tensor([N, K]),
    }
    strategy = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    expected = by_compressed_tensors("pack-quantized", tensors, num_bits=8, type="int", symmetric=True, **strategy)
    assert torch.equal(numbers(PackedInt8Layout(group), tensors).to(dtype), expected)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("group", [32, 64, None])
@pytest.mark.parametrize("zero_points", [False, True])
def test_packed_int4_equals_compressed_tensors(group, zero_points, dtype):
    groups = 1 if group is None else K // group
    tensors = {
        "weight_packed": words(N, K // 8),
        "weight_scale": scales(N, groups, dtype=dtype),
        "weight_shape": torch.tensor([N, K]),
    }
    if zero_points:
        tensors["weight_zero_point"] = words(N // 8, groups)
    strategy = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    expected = by_compressed_tensors(
        "pack-quantized", tensors, num_bits=4, type="int", symmetric=not zero_points, **strategy
    )
    assert torch.equal(numbers(PackedInt4Layout(group, zero_points, dtype), tensors).to(dtype), expected)


@pytest.mark.parametrize(("group", "columns"), [(16, 320), (96, 192), (160, 320)])
@pytest.mark.parametrize("rows", [16, 12, 5])
def test_packed_int4_of_odd_groups_and_rows_equals_its_description(group, columns, rows):
    """Zero points are packed along the rows, eight in a word: the last word may be partly empty."""
    codes, points = torch.randint(0, 16, (rows, columns)), torch.randint(0, 16, (rows, columns // group))
    scale = scales(rows, columns // group, dtype=BF16)
    padded = torch.nn.functional.pad(points, (0, 0, 0, -rows % 8), value=9)
    tensors = {
        "weight_packed": packed_by_hand(codes),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, columns]),
        "weight_zero_point": packed_by_hand(padded.t()).t().contiguous(),
    }
    expected = (codes - points.repeat_interleave(group, 1)).float() * scale.float().repeat_interleave(group, 1)
    assert torch.equal(numbers(PackedInt4Layout(group, True), tensors, rows, columns), expected)


def packed_by_hand(codes: torch.Tensor) -> torch.Tensor:
    """Eight codes in an int32, the first lowest."""
    places = codes.unflatten(1, (-1, 8)).long() << torch.arange(0, 32, 4)
    return places.sum(-1).to(torch.uint32).view(torch.int32)


@pytest.mark.parametrize("said", [[N, K + 8], [K, N], [N]])
def test_packed_int4_whose_shape_is_another_is_refused(said):
    layout = PackedInt4Layout(32, checks_shape=True)
    tensors = {"weight_packed": words(N, K // 8), "weight_scale": scales(N, K // 32, dtype=BF16)}
    with pytest.raises(CheckpointError, match=r"weight_shape says .*, and the layer is \[192, 320\]"):
        layout.to_parts(tensors | {"weight_shape": torch.tensor(said)}, N, K)
    layout.to_parts(tensors | {"weight_shape": torch.tensor([N, K], dtype=torch.int32)}, N, K)


def awq_by_hand(tensors: dict[str, torch.Tensor], group: int) -> torch.Tensor:
    """Number by number, from AutoAWQ's description: the i-th nibble of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i]."""

    def code(packed: torch.Tensor, row: int, column: int) -> int:
        nibble = [0, 4, 1, 5, 2, 6, 3, 7][column % 8]
        return (int(packed[row, column // 8]) >> 4 * nibble) & 15

    columns, rows = tensors["qweight"].shape[0], tensors["scales"].shape[1]
    weight = torch.empty(rows, columns, dtype=F16)
    for k in range(columns):
        for n in range(rows):
            difference = code(tensors["qweight"], k, n) - code(tensors["qzeros"], k // group, n)
            weight[n, k] = difference * tensors["scales"][k // group, n]
    return weight


def test_awq_equals_its_description():
    tensors = {"qweight": words(64, 2), "qzeros": words(2, 2), "scales": scales(2, 16, dtype=F16)}
    assert torch.equal(numbers(AwqLayout(32), tensors, 16, 64).half(), awq_by_hand(tensors, 32))


def gptq_by_hand(tensors: dict[str, torch.Tensor], group: int, add: int) -> torch.Tensor:
    columns, rows = tensors["qweight"].shape[0] * 8, tensors["scales"].shape[1]
    weight = torch.empty(rows, columns, dtype=F16)
    for k in range(columns):
        for n in range(rows):
            code = (int(tensors["qweight"][k // 8, n]) >> 4 * (k % 8)) & 15
            zero = (int(tensors["qzeros"][k // group, n // 8]) >> 4 * (n % 8)) & 15
            weight[n, k] = (code - (zero + add) % 16) * tensors["scales"][k // group, n]
    return weight


@pytest.mark.parametrize("zeros_less_one", [True, False])
def test_gptq_equals_its_description(zeros_less_one):
    tensors = {
        "qweight": words(8, 16),
        "qzeros": words(2, 2),  # among them 15, which stands for 0 and not for 16
        "scales": scales(2, 16, dtype=F16),
        "g_idx": torch.arange(64, dtype=torch.int32) // 32,
    }
    layout = GptqLayout(32, zeros_less_one)
    assert torch.equal(numbers(layout, tensors, 16, 64).half(), gptq_by_hand(tensors, 32, int(zeros_less_one)))


@pytest.mark.parametrize("word", [0x77777777, 0x88888888 - 2**32])
@pytest.mark.parametrize("zeros_less_one", [True, False])
def test_symmetric_gptq_means_8_whichever_way_it_is_written(word, zeros_less_one):
    """Some writers say "gptq" and store zero points as "gptq_v2" does."""
    tensors = {
        "qweight": words(8, 16),
        "qzeros": torch.full((2, 2), word, dtype=torch.int32),
        "scales": scales(2, 16, dtype=F16),
    }
    expected = gptq_by_hand(tensors, 32, int(word == 0x77777777))
    layout = GptqLayout(32, zeros_less_one, symmetric=True)
    assert torch.equal(numbers(layout, tensors, 16, 64).half(), expected)


@pytest.mark.parametrize("word", [0x66666666, 0x67777777])
def test_symmetric_gptq_with_other_zero_points_is_refused(word):
    tensors = {
        "qweight": words(8, 16),
        "qzeros": torch.full((2, 2), word, dtype=torch.int32),
        "scales": scales(2, 16, dtype=F16),
    }
    with pytest.raises(CheckpointError, match="zero points are stored that are not 8"):
        numbers(GptqLayout(32, symmetric=True), tensors, 16, 64)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_with_sorted_inputs_takes_each_inputs_scale_from_its_group(symmetric):
    group_of_input = integers(0, 2, 64, dtype=torch.int32)
    tensors = {
        "qweight": words(8, 16),
        "qzeros": torch.full((2, 2), 0x77777777, dtype=torch.int32) if symmetric else words(2, 2),
        "scales": scales(2, 16, dtype=F16),
    }
    ours = numbers(GptqLayout(32, symmetric=symmetric, sorted_inputs=True), tensors | {"g_idx": group_of_input}, 16, 64)
    for group in (0, 1):
        # As if all inputs were of that group.
        alone = {"qzeros": tensors["qzeros"][group:][:1], "scales": tensors["scales"][group:][:1]}
        whole = gptq_by_hand(tensors | alone, 64, 1)
        assert torch.equal(ours.half()[:, group_of_input == group], whole[:, group_of_input == group])


def test_gptq_whose_inputs_name_no_group_is_refused():
    tensors = {
        "qweight": words(8, 16),
        "qzeros": words(2, 2),
        "scales": scales(2, 16, dtype=F16),
        "g_idx": torch.full((64,), 2, dtype=torch.int32),
    }
    with pytest.raises(CheckpointError, match="names groups that have no scales"):
        numbers(GptqLayout(32, sorted_inputs=True), tensors, 16, 64)


def test_mxfp4_equals_compressed_tensors():
    tensors = {
        "weight_packed": integers(0, 256, N, K // 2, dtype=torch.uint8),
        "weight_scale": integers(110, 140, N, K // 32, dtype=torch.uint8),
    }
    expected = by_compressed_tensors(
        "mxfp4-pack-quantized", tensors, num_bits=4, type="float", strategy="group", group_size=32
    )
    assert torch.equal(numbers(Mxfp4Layout(), tensors).to(expected.dtype), expected)


def test_mxfp4_whose_scale_is_no_number_is_refused():
    tensors = {
        "weight_packed": torch.zeros(N, K // 2, dtype=torch.uint8),
        "weight_scale": torch.full((N, K // 32), 255, dtype=torch.uint8),
    }
    with pytest.raises(CheckpointError, match="not a number"):
        numbers(Mxfp4Layout(), tensors)


def test_nvfp4_equals_compressed_tensors_whose_global_scale_divides():
    tensors = {
        "weight_packed": integers(0, 256, N, K // 2, dtype=torch.uint8),
        "weight_scale": scales(N, K // 16, dtype=F32).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([137.3]),
    }
    expected = by_compressed_tensors(
        "nvfp4-pack-quantized", tensors, num_bits=4, type="float", strategy="tensor_group", group_size=16
    )
    assert torch.equal(numbers(Nvfp4Layout(), tensors).to(expected.dtype), expected)


def test_nvfp4_of_modelopt_multiplies():
    tensors = {
        "weight": integers(0, 256, N, K // 2, dtype=torch.uint8),
        "weight_scale": scales(N, K // 16, dtype=F32).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.0073),
    }
    ours = numbers(Nvfp4Layout("weight", "weight_scale_2", divides=False), tensors)
    scale = (tensors["weight_scale"].float() * tensors["weight_scale_2"]).repeat_interleave(16, 1)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    low, high = tensors["weight"] & 15, tensors["weight"] >> 4
    codes = torch.stack((low, high), -1).flatten(1).int()
    assert torch.equal(ours, values[codes & 7] * (1 - 2 * (codes >> 3)) * scale)


@pytest.mark.parametrize(
    ("layout", "name", "shape", "dtype", "says"),
    [
        (Float8Layout((128, 128)), "weight_scale", (1, 3), F32, r"is \[1, 3\], but the config calls for \[2, 3\]"),
        (Float8Layout((128, 128)), "weight", (N, K), F32, r"is torch\.float32, .* calls for torch\.float8_e4m3fn"),
        (Float8Layout(), "weight_scale", (7,), F32, r"is \[7\], .* calls for \[192, 1\] or \[\] or \[1\] or"),
        (PackedInt4Layout(128), "weight_scale", (N, 5), BF16, r"is \[192, 5\], .* calls for \[192, 3\]"),
    ],
)
def test_a_tensor_that_does_not_belong_is_told_what_was_called_for(layout, name, shape, dtype, says):
    expected = layout.expected(N, K)[name]
    assert re.search(says, str(expected.why_not(shape, dtype)))
    assert expected.why_not(expected.shape, expected.dtype) is None


def test_scales_that_are_no_numbers_are_refused():
    tensors = {"weight": random(N, K).to(torch.float8_e4m3fn), "weight_scale": torch.full((2, 3), torch.nan)}
    with pytest.raises(CheckpointError, match="a scale is not a finite number"):
        numbers(Float8Layout((128, 128)), tensors)


def nf4_file() -> dict[str, torch.Tensor]:
    nested_map = torch.full((256,), float("nan"))
    nested_map[[180, 0, 249]] = torch.tensor([0.07046874612569809, -0.992968738079071, 0.922656238079071])
    return {
        "weight": torch.tensor(list(bytes.fromhex(NF4_CODES)), dtype=torch.uint8).view(-1, 1),
        "weight.absmax": torch.tensor([180, 0, 249], dtype=torch.uint8),
        "weight.quant_map": torch.tensor(NF4),
        "weight.nested_absmax": torch.tensor([1.1666666269302368]),
        "weight.nested_quant_map": nested_map,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(NF4_STATE), dtype=torch.uint8),
    }


def test_nf4_of_a_published_file_has_the_numbers_of_its_library():
    found = numbers(Bitsandbytes4Layout("nf4", nested=True), nf4_file(), 4, 40).flatten()
    assert {place: found[place].item() for place in NF4_NUMBERS} == NF4_NUMBERS


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize(("rows", "columns"), [(192, 320), (7, 40), (300, 200)])
def test_bitsandbytes_of_four_bits(kind: str, nested: bool, rows: int, columns: int):
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = random(rows, columns) * random(rows, 1, seed=3).exp()
    codes, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
    tensors = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    found = numbers(Bitsandbytes4Layout(kind, nested), {"weight": codes, **tensors}, rows, columns)
    assert torch.equal(found, functional.dequantize_4bit(codes, state))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quant_type": "fp4"}, "has quant_type fp4, not nf4"),
        ({"blocksize": 128}, "has blocksize 128, not 64"),
        ({"shape": [40, 4]}, r"has shape \[40, 4\], not \[4, 40\]"),
        ({"nested_blocksize": 64}, "has nested_blocksize 64, not 256"),
        ({"nested_offset": None}, "has no nested_offset"),
        (None, "is no JSON"),
    ],
    ids=str,
)
def test_a_state_of_nf4_weights_that_is_not_that_of_the_matrix_is_refused(change, words):
    state = b"{" if change is None else json.dumps(json.loads(NF4_STATE) | change).encode()
    blob = torch.tensor(list(state), dtype=torch.uint8)
    tensors = nf4_file() | {"weight.quant_state.bitsandbytes__nf4": blob}
    with pytest.raises(CheckpointError, match=words):
        Bitsandbytes4Layout("nf4", nested=True).to_parts(tensors, 4, 40)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_one_input_of_gptq_that_names_no_group_is_enough_to_be_refused(wrong):
    groups = torch.arange(64, dtype=torch.int32) // 32
    groups[17] = wrong
    tensors = {"qweight": words(8, 16), "qzeros": words(2, 2), "scales": scales(2, 16, dtype=F16), "g_idx": groups}
    with pytest.raises(CheckpointError, match="names groups that have no scales"):
        numbers(GptqLayout(32, sorted_inputs=True), tensors, 16, 64)
