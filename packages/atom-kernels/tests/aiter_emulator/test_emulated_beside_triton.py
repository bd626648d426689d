"""The emulator beside AITER's own Triton kernels: those of the wheel on PyPI, run by Triton's interpreter."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from typing import Any

import pytest
import torch

from aiter_wheel import aiter_wheel
from emulated_aiter import ROOT, emulated_aiter
from tests.aiter_emulator.semantics.errors import SilentlyWrong

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]

SUPPORT = ROOT / "tests" / "support"
SLOTS = torch.tensor([5, -1, 40, 63, 0])
POSITIONS = torch.tensor([0, 3, 12, 7, 7])
GARBAGE = "decode beside garbage"


def paged(flash: bool, neox: bool, full: bool = False, **changes: Any) -> dict[str, Any]:
    angles = torch.randn(14, 32 if full else 16)
    shapes = [(4, 16, 2, 32)] * 2 if flash else [(4, 2, 4, 16, 8), (4, 2, 32, 16)]
    qkv = torch.randn(5, 8, 32)
    arguments = {
        "q": qkv[:, :4],
        "k": qkv[:, 4:6],
        "v": qkv[:, 6:],
        "slot_mapping": SLOTS,
        "pos": POSITIONS,
        "key_cache": torch.zeros(shapes[0]),
        "value_cache": torch.zeros(shapes[1]),
        "cos": angles.cos(),
        "sin": angles.sin(),
        "k_scale": torch.tensor([0.5]),
        "v_scale": torch.tensor([4.0]),
        "is_neox": neox,
        "flash_layout": flash,
        "output_zeros": True,
    }
    return call("fused_kv_cache", "fused_qk_rope_reshape_and_cache", arguments | changes)


def latent(neox: bool, **changes: Any) -> dict[str, Any]:
    angles = torch.randn(14, 8)
    arguments = {
        "q_nope": torch.randn(3, 4, 32),
        "q_pe": torch.randn(3, 4, 16),
        "k_nope": torch.randn(5, 1, 32),
        "k_pe": torch.randn(5, 1, 16),
        "kv_cache": torch.zeros(64, 1, 48),
        "slot_mapping": SLOTS,
        "pos": POSITIONS,
        "cos": angles.cos(),
        "sin": angles.sin(),
        "k_scale": torch.tensor([0.5]),
        "is_neox": neox,
        "num_decode_toks_for_zeros": 2,
    }
    return call("fused_kv_cache", "fused_qk_rope_cat_and_cache_mla", arguments | changes)


def attention(lengths: list[tuple[int, int]], window: int = -1, sinks: bool = False, **changes: Any) -> dict[str, Any]:
    """(queries, keys) of each sequence; pages in a random order."""
    starts = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int()
    longest = max(keys for _, keys in lengths)
    pages = -(-longest // 16)
    q = torch.randn(int(starts[-1]), 4, 32)
    arguments = {
        "q": q,
        "k": torch.randn(12, 16, 2, 32),
        "v": torch.randn(12, 16, 2, 32),
        "out": torch.zeros_like(q),
        "cu_seqlens_q": starts,
        "max_seqlen_q": max(queries for queries, _ in lengths),
        "seqused_k": torch.tensor([keys for _, keys in lengths]).int(),
        "max_seqlen_k": longest,
        "softmax_scale": 0.3,
        "causal": True,
        "window_size": (window, 0 if window >= 0 else -1),
        "block_table": torch.randperm(12)[: len(lengths) * pages].view(len(lengths), pages).int(),
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
        "sinks": torch.randn(4) if sinks else None,
    }
    return call("unified_attention", "unified_attention", arguments | changes)


def decode_beside_garbage() -> dict[str, Any]:
    """A sequence whose last page is not a number behind the sequence's end."""
    made = attention([(1, 20)])
    given = made["arguments"]
    for cache in (given["k"], given["v"]):
        cache[given["block_table"][0, 1], 4:] = float("nan")
    return made


def product() -> dict[str, Any]:
    blocks = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 1}
    operands = {"XQ": torch.randn(2, 5, 32), "WQ": torch.randn(2, 7, 32), "bias": torch.randn(2, 1, 7)}
    halves = {name: tensor.half() for name, tensor in operands.items()}
    return call("batched_gemm_bf16", "batched_gemm_bf16", halves | {"dtype": torch.float16, "config": blocks})


def product_of_rounded_rows() -> dict[str, Any]:
    """Rows that the interpreter rounds rightly: it knows no carry, and no even one of two that are as near."""
    name = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
    x = (torch.randint(-6, 7, (5, 3, 192)) * 1.04).half()
    x[..., ::128] = 7
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "kpack": 1}
    arguments = {
        "X": x,
        "WQ": torch.randint(-15, 16, (3, 7, 192)).float().to(torch.float8_e4m3fn),
        "w_scale": torch.tensor([0.25]),
        "bias": torch.randn(3, 1, 7).half(),
        "dtype": torch.float16,
        "transpose_bm": True,
        "transpose_bm_in": True,
        "config": config | {"cache_modifier": ""},
    }
    return call(name, name, arguments, arch="gfx950")


def product_of_rows_in_mxfp4() -> dict[str, Any]:
    """Rows with numbers in the middle of two codes, a block of zeros, and one of small numbers."""
    name = "batched_gemm_afp4wfp4_pre_quant"
    x = torch.randn(3, 5, 128).bfloat16()
    x[0, 1, :32] = 0
    x[1, 1] = torch.tensor([6, 0.25, 0.75, -2.5, 5, 1.25, 1.75, -3.5] * 16)
    x[1, 2, :32] *= 0.001
    x[2, 0, 0] = 7
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "NUM_KSPLIT": 1}
    arguments = {
        "x": x,
        "w": torch.randint(0, 256, (3, 8, 64), dtype=torch.uint8),
        "w_scales": torch.randint(120, 126, (3, 8, 4), dtype=torch.uint8),
        "y": torch.zeros(5, 3, 8, dtype=torch.float16).transpose(0, 1),
        "config": config | {"SPLITK_BLOCK_SIZE": 128, "cache_modifier": ""},
    }
    return call(name, name, arguments, arch="gfx950")


def call(module: str, function: str, arguments: dict[str, Any], arch: str = "gfx942") -> dict[str, Any]:
    return {"module": f"aiter.ops.triton.{module}", "function": function, "arguments": arguments, "arch": arch}


def calls() -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    without = {"apply_scale": False, "output_zeros": False}
    return {
        "flash, NeoX": paged(flash=True, neox=True),
        "flash, GPT-J": paged(flash=True, neox=False),
        "packed, NeoX": paged(flash=False, neox=True, **without),
        "packed, full tables": paged(flash=False, neox=True, full=True),
        "packed, GPT-J, full tables": paged(flash=False, neox=False, full=True),
        "offsets": paged(flash=True, neox=True, pos=POSITIONS - 1, offs=torch.tensor([1, 2, 1, 1, 0]) + 1),
        "latent, NeoX": latent(neox=True),
        "latent, GPT-J": latent(neox=False, apply_scale=False),
        "prefill": attention([(5, 5), (3, 3)]),
        "decode": attention([(1, 20), (1, 33), (1, 1)]),
        "chunks and decode": attention([(4, 20), (1, 9), (7, 30)]),
        "window": attention([(4, 20), (1, 33)], window=7),
        "sinks": attention([(4, 20), (1, 33)], sinks=True),
        "window and sinks": attention([(9, 40), (1, 33)], window=11, sinks=True),
        "softcap": attention([(4, 20), (1, 33)], softcap=2.0),
        "ALiBi": attention([(4, 20), (1, 33)], alibi_slopes=torch.linspace(0.1, 0.9, 4)),
        "product": product(),
        "product of rows that are rounded to fp8": product_of_rounded_rows(),
        "product of rows that are rounded to MXFP4": product_of_rows_in_mxfp4(),
        GARBAGE: decode_beside_garbage(),
    }


@pytest.fixture(scope="module")
def of_the_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the real kernels return and leave in their arguments, all run in one process."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(aiter_wheel().file) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("aiter/ops/triton/")])
    files = [str(folder / name) for name in ("calls.pt", "results.pt")]
    torch.save(list(calls().values()), files[0])
    path = os.pathsep.join(str(place) for place in (SUPPORT, *sys.path) if place)
    command = [sys.executable, str(SUPPORT / "aiter_triton_runner.py"), str(folder), *files]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(calls(), torch.load(files[1], weights_only=True), strict=True))


@pytest.mark.parametrize("name", [name for name in calls() if name != GARBAGE])
def test_the_emulator_computes_what_the_kernel_does(name: str, of_the_kernels: dict[str, dict[str, Any]]):
    real, made = of_the_kernels[name], copy.deepcopy(calls()[name])
    with emulated_aiter("pypi", made["arch"]):
        returned = getattr(importlib.import_module(made["module"]), made["function"])(**made["arguments"])
    compare(returned, real["returned"])
    compare(made["arguments"], real["arguments"])


def test_the_kernel_reads_pages_to_their_ends(of_the_kernels: dict[str, dict[str, Any]]):
    assert of_the_kernels[GARBAGE]["arguments"]["out"].isnan().any()
    made = calls()[GARBAGE]
    with emulated_aiter("pypi"), pytest.raises(SilentlyWrong, match="not finite"):
        getattr(importlib.import_module(made["module"]), made["function"])(**made["arguments"])


def compare(ours: Any, real: Any) -> None:
    """Equal up to rounding; rows that neither writes are not a number in ours and anything in the real one's."""
    if isinstance(real, torch.Tensor) and real.dtype.itemsize == 1:
        assert torch.equal(ours.view(torch.uint8), real.view(torch.uint8))
    elif isinstance(real, torch.Tensor):
        written = ~ours.isnan()
        close = {"rtol": 1e-2, "atol": 2e-3} if real.dtype == torch.float16 else {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(ours[written], real[written], **close)
    elif isinstance(real, dict):
        for key in real:
            compare(ours[key], real[key])
    elif isinstance(real, (list, tuple)):
        assert len(ours) == len(real)
        for ours_one, real_one in zip(ours, real, strict=True):
            compare(ours_one, real_one)
    else:
        assert ours == real
