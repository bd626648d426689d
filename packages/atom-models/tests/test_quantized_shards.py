"""Ranks that share a quantized linear compute what one computes, wherever their cuts go through scales and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from atom_kernels.protocols.collectives import SingleRank
from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import (
    ColumnParallelLinear,
    Linear,
    LMHead,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    Shard,
)
from atom_models.quantization import choose_quantization
from quantized_checkpoints import PUBLISHED, Published
from single_layers import bytes_on_rank

IN, OUT = 192, 384
# nf4 becomes plain numbers while it is loaded.
PACKED = [name for name in PUBLISHED if not name.startswith("nf4")]


@dataclass
class OneOf(SingleRank):
    """A rank by itself: what it would exchange stays its own part."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x


def context(published: Published, rank: int = 0, size: int = 1) -> BuildContext:
    quantization = choose_quantization({"quantization_config": dict(published.config)})
    return BuildContext(dtype=torch.float32, quantization=quantization, groups=Groups(OneOf(rank, size)))


def matrix(num_rows: int = OUT, num_columns: int = IN, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed))


def load(layer: Any, published: Published, matrices: dict[str, torch.Tensor], bias: torch.Tensor | None = None) -> Any:
    for name, weight in matrices.items():
        stored, _ = published.write(weight)
        for suffix, tensor in stored.items():
            if f"{name}.{suffix}" not in layer.ignored_weights():
                layer.load_shard(f"{name}.{suffix}", tensor)
        if bias is not None:
            layer.load_shard(f"{name}.bias", bias[: weight.shape[0]])
    layer.finish()
    return layer


def expected(published: Published, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ published.write(weight)[1].t()


def assert_close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PUBLISHED)
def test_outputs_are_shared(name: str, size: int):
    published, weight, x, bias = PUBLISHED[name], matrix(), matrix(5, seed=1), torch.randn(OUT)
    parts = []
    for rank in range(size):
        layer = ColumnParallelLinear(IN, OUT, context(published, rank, size), prefix="m.a_proj", bias=True)
        parts.append(load(layer, published, {"m.a_proj": weight}, bias)(x))
    assert_close(torch.cat(parts, dim=1), expected(published, weight, x) + bias)


@pytest.mark.parametrize("name", PUBLISHED)
def test_outputs_are_given_in_the_order_that_a_shard_names(name: str):
    published, weight, x, bias = PUBLISHED[name], matrix(), matrix(5, seed=1), torch.randn(OUT)
    runs = ((128, 192), (256, OUT), (0, 128), (192, 256))
    layer = Linear(IN, (Shard("a_proj", OUT, order=runs),), context(published), prefix="m.in_proj", bias=True)
    in_order = (expected(published, weight, x) + bias)[:, torch.cat([torch.arange(*run) for run in runs])]
    assert_close(load(layer, published, {"m.a_proj": weight}, bias)(x), in_order)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", PUBLISHED)
def test_inputs_are_shared(name: str, size: int):
    """96, 64 and 48 inputs a rank: these last go through groups of 32."""
    published, weight, x, bias = PUBLISHED[name], matrix(), matrix(5, seed=1), torch.randn(OUT)
    width = IN // size
    if name == "mxfp4" and size == 4:
        with pytest.raises(ValueError, match="mxfp4 has a scale for each 32 inputs: it cannot be cut between them"):
            RowParallelLinear(IN, OUT, context(published, 1, size), prefix="m.a_proj")
        return
    total = torch.zeros(5, OUT)
    for rank in range(size):
        layer = RowParallelLinear(IN, OUT, context(published, rank, size), prefix="m.a_proj", bias=True)
        total += load(layer, published, {"m.a_proj": weight}, bias)(x[:, rank * width : (rank + 1) * width])
    assert_close(total, expected(published, weight, x) + bias)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", PUBLISHED)
def test_heads_are_shared_and_repeated(name: str, size: int):
    """4 heads of 48 and 2 heads of keys and values: parts of one matrix start at 48, 96 and 192 rows."""
    published, x = PUBLISHED[name], matrix(5, seed=1)
    weights = {"m.q_proj": matrix(192), "m.k_proj": matrix(96, seed=2) * 9, "m.v_proj": matrix(96, seed=3)}
    whole = {shard: expected(published, weight, x) for shard, weight in weights.items()}
    for rank in range(size):
        layer = QKVParallelLinear(
            IN, head_dim=48, num_heads=4, num_kv_heads=2, context=context(published, rank, size), prefix="m.qkv_proj"
        )
        q, k, v = load(layer, published, weights)(x).split(layer.sizes, dim=1)
        assert_close(q, whole["m.q_proj"].chunk(size, 1)[rank])
        pieces = min(size, 2)
        assert_close(k, whole["m.k_proj"].chunk(pieces, 1)[rank * pieces // size])
        assert_close(v, whole["m.v_proj"].chunk(pieces, 1)[rank * pieces // size])


@pytest.mark.parametrize("name", PUBLISHED)
def test_merged_matrices_of_odd_heights_keep_their_own_scales(name: str):
    published, x = PUBLISHED[name], matrix(5, seed=1)
    weights = {"m.gate_proj": matrix(200) / 7, "m.up_proj": matrix(136, seed=2) * 5}
    layer = MergedColumnParallelLinear(
        IN, {"gate_proj": 200, "up_proj": 136}, context(published), prefix="m.gate_up_proj"
    )
    wanted = torch.cat([expected(published, weight, x) for weight in weights.values()], dim=1)
    assert_close(load(layer, published, weights)(x), wanted)


def test_a_head_may_be_quantized_and_shared():
    """GPTQ checkpoints may say so; 3 ranks of 136 words each, and the last of fewer."""
    from dataclasses import replace

    gptq = PUBLISHED["gptq"]
    published, weight, x = replace(gptq, config={**gptq.config, "lm_head": True}), matrix(400), matrix(5, seed=1)
    parts = []
    for rank in range(3):
        head = load(LMHead(IN, 400, context(published, rank, 3)), published, {"lm_head": weight})
        parts.append(head._apply(x))
    assert_close(torch.cat(parts, dim=1)[:, :400], expected(published, weight, x))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", PACKED)
def test_a_rank_allocates_the_bytes_that_are_counted(name: str, size: int):
    """Tiles of 128 x 128 are cut: 96 inputs, and merged matrices that begin at 100."""
    published, at = PUBLISHED[name], context(PUBLISHED[name], size - 1, size)
    row = RowParallelLinear(IN, OUT, at, prefix="m.down_proj")
    merged = MergedColumnParallelLinear(IN, {"gate_proj": 200, "up_proj": 136}, at, prefix="m.gate_up_proj", bias=True)
    layers = ((row, {"down_proj": OUT}), (merged, {"gate_proj": 200, "up_proj": 136}))
    for layer, heights in layers:
        for shard, height in heights.items():
            stored, _ = published.write(matrix(height))
            for suffix in stored.keys() - published_but_ignored(layer, f"m.{shard}"):
                layer.load_shard(f"m.{shard}.{suffix}", stored[suffix])
        [part] = layer._parts
        tensors = part.matrices.take(part.matrices.weight_format)
        allocated = [sum(tensor.nbytes for tensor in tensors.values())]
        if part.problem.bias:
            allocated.append(part.matrices.take_bias().nbytes)
        assert bytes_on_rank(layer) == allocated


def published_but_ignored(layer: Any, name: str) -> set[str]:
    return {full.removeprefix(f"{name}.") for full in layer.ignored_weights()}


def test_a_layer_of_which_only_a_matrix_is_missing_runs_nothing():
    published = PUBLISHED["fp8 tiles"]
    layer = ReplicatedLinear(IN, OUT, context(published), prefix="m.a_proj")
    layer.load_shard("m.a_proj.weight", published.write(matrix())[0]["weight"])
    with pytest.raises(RuntimeError, match="has no weights yet"):
        layer(torch.zeros(1, IN))
