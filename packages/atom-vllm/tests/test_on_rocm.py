"""The plugin over vLLM's ROCm platform, which this machine only simulates: nothing of ROCm or AITER is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.attention import AttentionProblem
from atom_kernels.platform import Platform, use_platform
from stub_vllm import stub_vllm

ROCM = "vllm.platforms.rocm.RocmPlatform"


@pytest.fixture(params=["gfx942", "gfx950"])
def ours(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The platform that vLLM gets on a machine with such a GPU."""
    with use_platform(Platform.rocm(request.param)), stub_vllm(base=ROCM):
        name = importlib.import_module("atom_vllm.register").register_platform()
        assert name == "atom_vllm.platform.AtomRocmPlatform"
        module = importlib.import_module("atom_vllm.platform")
        yield module.AtomRocmPlatform
        assert not any(name.split(".")[0] == "aiter" for name in sys.modules)


def layer(**fields: Any) -> Any:
    values = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "use_mla": False}
    return SimpleNamespace(**(values | {"attn_type": "decoder"} | fields))


def test_it_stays_a_rocm_platform_with_our_attention(ours: Any) -> None:
    assert ours._enum == "RocmPlatform"
    chosen = ours.get_attn_backend_cls(None, attn_selector_config=layer(), num_heads=32)
    assert chosen == "atom_vllm.mixers.attention.AtomAttentionBackend"


def test_latent_attention_of_vllms_own_models_stays_vllms(ours: Any) -> None:
    assert ours.get_attn_backend_cls(None, attn_selector_config=layer(use_mla=True)) == "stock.RocmPlatform.Mla"


def test_switched_off_it_is_vllms_own(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN_ATTENTION", "1")
    assert ours.get_attn_backend_cls(None, attn_selector_config=layer()) == "stock.RocmPlatform.Dense"


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_kernels_for_gpus_are_planned_over_vllms_cache(ours: Any, cache: str) -> None:
    from atom_vllm.mixers.cache_dtypes import cache_format
    from atom_vllm.mixers.cache_view import plan_over_view

    problem = AttentionProblem(
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        scale=0.1,
        dtype="bfloat16",
        cache=cache_format(cache, "bfloat16"),
        block_size=16,
    )
    plan = plan_over_view(problem)
    assert plan.layout.name == "packed_hnd"
    assert plan.backend in ("aiter", "triton", "reference")
    chosen = ours.get_attn_backend_cls(None, attn_selector_config=layer(kv_cache_dtype=cache))
    assert chosen.startswith("atom_vllm" if plan.backend != "reference" else "stock")


def test_models_are_registered_as_anywhere(ours: Any) -> None:
    module = importlib.import_module("atom_vllm.register")
    module.register_model()
    assert module.logger.name == "vllm.atom"
