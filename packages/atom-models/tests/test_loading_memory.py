"""How much memory loading takes: the finished model and one layer, whichever format it is rounded to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_kernels.formats import Float8, Integers, Mxfp4, Offset, Plain, WeightFormat
from atom_kernels.native import native_unavailable
from atom_models import BuildContext, build_model, load_named_weights, load_weights, open_checkpoint
from atom_models.quantization import choose_quantization
from atom_models.quantization.rounding import rounded
from live_storage import LiveStorages
from packed_bfloat16 import packed_bfloat16
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

FORMATS: list[WeightFormat] = [
    Integers(8),
    Integers(4, 32, Offset.MINIMUM, torch.float16),
    Float8(),
    Float8(128, 128),
    Mxfp4(),
    Plain(torch.float16),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory") / "m"
    return open_checkpoint(make_tiny_llama(folder, hidden=256, intermediate=1024, num_layers=4))


@pytest.mark.parametrize(
    "quantization",
    ["none", "int8", *(pytest.param(name, marks=packed_bfloat16) for name in ("fp8", "fp8_block", "int4", "mxfp4"))],
)
def test_loading_takes_no_more_than_the_finished_model_and_one_layer(quantization: str, checkpoint) -> None:
    if native_unavailable("linear_quantized"):
        pytest.skip("no C kernels here")
    weights = {name: weight.bfloat16() for name, weight in load_file(checkpoint.path / "model.safetensors").items()}
    one_layer = sum(weight.nbytes for name, weight in weights.items() if ".layers.0." in name)
    chosen = choose_quantization(checkpoint.config, quantization)
    model = build_model(checkpoint, BuildContext(dtype=torch.bfloat16, quantization=chosen))
    with LiveStorages() as live:
        load_named_weights(model, ((name, weights[name].clone()) for name in sorted(weights)), "here")
    assert live.peak <= live.num_bytes + one_layer


@packed_bfloat16
@pytest.mark.parametrize("quantization", ["fp8_block", "int4"])
def test_loading_a_mixture_takes_no_more_than_the_finished_model_and_one_layer(quantization: str, tmp_path) -> None:
    if native_unavailable("moe_quantized"):
        pytest.skip("no C kernels here")
    sizes = {"hidden_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 4}
    checkpoint = open_checkpoint(make_tiny("qwen3_moe", tmp_path / "m", **sizes))
    weights = {name: weight.bfloat16() for name, weight in load_file(checkpoint.path / "model.safetensors").items()}
    one_layer = sum(weight.nbytes for name, weight in weights.items() if ".layers.0." in name)
    chosen = choose_quantization(checkpoint.config, quantization)
    model = build_model(checkpoint, BuildContext(dtype=torch.bfloat16, quantization=chosen))
    with LiveStorages() as live:
        load_named_weights(model, ((name, weights[name].clone()) for name in sorted(weights)), "here")
    assert live.num_bytes < sum(weight.nbytes for weight in weights.values()) * 0.75
    assert live.peak <= live.num_bytes + one_layer


def test_tensors_are_read_layer_by_layer_wherever_they_are_stored(tmp_path) -> None:
    """Some writers put all matrices of one kind into one file."""
    folder = make_tiny_llama(tmp_path / "m", num_layers=3, num_shards=2)
    weights = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    scatter(folder, weights)
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint, BuildContext(dtype=torch.float32))
    order: list[str] = []
    for name, layer in model.named_modules():
        if hasattr(layer, "load_shard"):
            watch(layer, name, order)
    load_weights(model, checkpoint)
    begun = [order[place] for place in range(len(order)) if place == 0 or order[place] != order[place - 1]]
    assert len(begun) == len(set(begun))
    blocks = [name.split(".")[2] for name in begun if ".layers." in name]
    assert blocks == sorted(blocks)


def scatter(folder, weights) -> None:
    """Up projections in one file, everything else in the other; each in an order that is not the layers'."""
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    placed = {name: f"{'up' if 'up_proj' in name else 'rest'}.safetensors" for name in weights}
    for file in set(placed.values()):
        save_file({name: weights[name] for name in reversed(weights) if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def watch(layer, name: str, order: list[str]) -> None:
    load = layer.load_shard

    def noted(tensor_name, tensor):
        order.append(name)
        load(tensor_name, tensor)

    layer.load_shard = noted


@pytest.mark.parametrize("wanted", FORMATS, ids=lambda one: one.name)
@pytest.mark.parametrize("held", [Plain(torch.bfloat16), Float8(128, 128)], ids=lambda one: one.name)
@pytest.mark.parametrize("num_rows", [5, 129, 1000])
def test_rounding_in_pieces_changes_no_number(held: WeightFormat, wanted: WeightFormat, num_rows: int) -> None:
    tensors = held.quantize(torch.randn(num_rows, 512, generator=torch.Generator().manual_seed(1)))
    whole = wanted.quantize(held.dequantize(tensors, 512))
    pieces = rounded(tensors, held, wanted, (num_rows, 512))
    assert pieces.keys() == whole.keys()
    for name, tensor in whole.items():
        assert torch.equal(pieces[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


@dataclass(frozen=True)
class Noting(Integers):
    """Integers that note the shape of each piece that is rounded to them."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def quantize(self, weight):
        self.shapes.append(tuple(weight.shape))
        return super().quantize(weight)


@pytest.mark.parametrize(("num_rows", "pieces"), [(128, [128]), (256, [128, 128]), (129, [128, 1]), (8192, [256] * 32)])
def test_a_matrix_is_rounded_in_pieces_of_16384_numbers_but_no_more_than_32(num_rows: int, pieces: list[int]) -> None:
    wanted, tensors = Noting(8), {"weight": torch.ones(num_rows, 128)}
    rounded(tensors, Plain(torch.float32), wanted, (num_rows, 128))
    assert wanted.shapes == [(rows, 128) for rows in pieces]
