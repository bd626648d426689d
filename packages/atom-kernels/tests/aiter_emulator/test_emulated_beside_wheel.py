"""The emulator beside AITER's own sources: signatures, and the functions that are pure torch, of the wheel on PyPI."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from aiter_wheel import AiterWheel, aiter_wheel, parameters
from emulated_aiter import TREES
from tests.aiter_emulator.semantics.quantized_experts import int4_numbers

pytestmark = pytest.mark.network

TREE = TREES / "pypi"
FILES = sorted(file.relative_to(TREE) for file in (TREE / "aiter").rglob("*.py"))


@pytest.fixture
def wheel() -> AiterWheel:
    return aiter_wheel()


def public_functions(file: Path) -> dict[str, ast.FunctionDef]:
    """Functions, and methods as ``Class.method``, that a file of the emulator defines."""
    body = ast.parse((TREE / file).read_text()).body
    found = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    for owner in (node for node in body if isinstance(node, ast.ClassDef)):
        found |= {f"{owner.name}.{node.name}": node for node in owner.body if isinstance(node, ast.FunctionDef)}
    return {name: node for name, node in found.items() if not name.split(".")[-1].startswith("_")}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_function_has_the_parameters_of_the_real_one(wheel: AiterWheel, file: Path):
    assert wheel.has(str(file))
    for name, ours in public_functions(file).items():
        owner, _, method = name.rpartition(".")
        body = wheel.tree(str(file)).body
        if owner:
            body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner).body
        real = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == method)
        assert parameters(ours) == parameters(real), name


def test_the_package_has_the_version_of_the_wheel(wheel: AiterWheel):
    metadata = (TREE / f"amd_aiter-{wheel.file.name.split('-')[1]}.dist-info" / "METADATA").read_text()
    assert f"Version: {wheel.file.name.split('-')[1]}" in metadata.splitlines()


def test_words_of_int4_hold_what_the_wheels_helpers_put_there(wheel: AiterWheel):
    names = ("convert_int8_to_uint32_int4", "rearrange_4bit_elements")
    pack, rearrange = wheel.functions("aiter/int4_utils.py", *names).values()
    numbers = torch.randint(-8, 8, (2, 4, 16), dtype=torch.int8)
    assert torch.equal(int4_numbers(rearrange(pack(numbers))), numbers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fnuz, torch.int8])
@pytest.mark.parametrize("layout", [(16, 16), (32, 16), (16, 32)])
def test_weights_are_shuffled_alike(wheel: AiterWheel, pypi_aiter: ModuleType, dtype: torch.dtype, layout):
    real = wheel.functions("aiter/ops/shuffle.py", "shuffle_weight")["shuffle_weight"]
    ours = importlib.import_module("aiter.ops.shuffle").shuffle_weight
    weight = (torch.randn(3, 64, 128) * 20).to(dtype)
    expected = real(weight, layout)
    assert torch.equal(ours(weight, layout).view(torch.uint8), expected.view(torch.uint8))
    assert expected.is_shuffled is ours(weight, layout).is_shuffled is True


def test_quantizers_give_the_same_numbers(wheel: AiterWheel, pypi_aiter: ModuleType):
    names = "get_dtype_max", "pertoken_quant", "per_tensor_quant", "per_block_quant_wrapper"
    real = wheel.functions("aiter/ops/quant.py", *names)
    blocks = real["per_block_quant_wrapper"]((1, 128))(real["pertoken_quant"])
    quantize, kinds = importlib.import_module("aiter.ops.quant").get_torch_quant, pypi_aiter.QuantType
    x = torch.randn(5, 256).bfloat16()
    x[2] = 0
    pairs = [(kinds.per_Token, real["pertoken_quant"]), (kinds.per_Tensor, real["per_tensor_quant"])]
    for dtype in (torch.int8, pypi_aiter.dtypes.fp8):
        for kind, function in [*pairs, (kinds.per_1x128, blocks)]:
            expected, scale = function(x, quant_dtype=dtype)
            ours, our_scale = quantize(kind)(x, quant_dtype=dtype)
            assert torch.equal(ours.view(torch.uint8), expected.view(torch.uint8)), kind
            assert torch.equal(our_scale, scale), kind
    smooth, factor = torch.rand(256) + 0.5, {"scale_dtype": torch.float16, "dtypeMax": 100.0}
    for ours, expected in zip(
        quantize(kinds.per_Token)(x, x_scale=smooth, **factor),
        real["pertoken_quant"](x, x_scale=smooth, **factor),
        strict=True,
    ):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_the_reference_of_experts_gives_the_same_numbers(
    wheel: AiterWheel, pypi_aiter: ModuleType, gated: bool, masked: bool
):
    kinds = pypi_aiter.ActivationType
    known = {
        "ActivationType": kinds,
        "aiter": SimpleNamespace(get_torch_act={kinds.Silu: F.silu, kinds.Gelu: F.gelu}.get),
    }
    real = wheel.functions("aiter/fused_moe.py", "torch_moe_act", "torch_moe", **known)["torch_moe"]
    ours = importlib.import_module("aiter.fused_moe").torch_moe
    experts, hidden, inter = 3 if masked else 5, 32, 16
    x, w2 = torch.randn(7, hidden), torch.randn(experts, hidden, inter)
    w1 = torch.randn(experts, inter * (2 if gated else 1), hidden)
    ids = torch.stack([torch.randperm(5)[:2] for _ in range(7)]).int()
    mask = torch.tensor([1, 0, 1, 0, 1], dtype=torch.int32) if masked else None
    for kind in (kinds.Silu, kinds.Gelu):
        given = {"topk_weight": torch.rand(7, 2), "topk_ids": ids, "expert_mask": mask, "activation": kind}
        torch.testing.assert_close(ours(x, w1, w2, **given), real(x, w1, w2, **given))


def by_expert(weights: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row in the order of its experts: the kernels and the references do not agree on any other."""
    order = ids.argsort(-1)
    return weights.gather(1, order), ids.gather(1, order)


@pytest.mark.parametrize("renormalize", [True, False])
def test_the_references_of_grouped_routing_choose_alike(wheel: AiterWheel, pypi_aiter: ModuleType, renormalize: bool):
    real = wheel.functions("aiter/ops/topk.py", "biased_grouped_topk_torch", "grouped_topk_torch")
    # Biases above zero: the reference fills experts of other groups with 0, which would win against what is negative.
    gating, bias = torch.randn(9, 64), torch.rand(64) + 0.1
    groups = {"num_expert_group": 8, "topk_group": 3}
    weights, ids = torch.empty(9, 6), torch.empty(9, 6, dtype=torch.int32)
    pypi_aiter.biased_grouped_topk(gating, bias, weights, ids, 8, 3, renormalize)
    expected = real["biased_grouped_topk_torch"](gating, bias, 6, renormalize, **groups)
    torch.testing.assert_close(by_expert(weights, ids), by_expert(*expected))
    for is_softmax, name in ((True, "softmax"), (False, "sigmoid")):
        pypi_aiter.grouped_topk(gating, weights, ids, 8, 3, renormalize, is_softmax)
        expected = real["grouped_topk_torch"](gating, 6, renormalize, **groups, scoring_func=name)
        torch.testing.assert_close(by_expert(weights, ids), by_expert(*expected))
