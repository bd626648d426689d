"""Where AITER norms, rotates and writes in one kernel, vLLM is asked for a cache whose keys come before its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from aiter_calls import recorded_calls
from amd_machine import amd_machine
from atom_kernels.aiter.attention.layouts import from_nhd, restore_nhd
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.mixers import select_mixer
from stub_vllm import CacheLayouts, PagedSpec, stub_vllm
from vllm_steps import described

FUSION, KERNEL = "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION", "fused_qk_norm_rope_cache_quant_shuffle"
ROCM = "vllm.platforms.rocm.RocmPlatform"
BF16 = torch.bfloat16
SPEC = PagedSpec(16, 2, 128, BF16)


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSION, "1")


@pytest.fixture
def dtype_of_the_model() -> Iterator[None]:
    torch.set_default_dtype(BF16)
    yield
    torch.set_default_dtype(torch.float32)


def backend() -> Any:
    from atom_vllm.mixers.attention import AtomAttentionBackend

    return AtomAttentionBackend


def asked(version: str, release: str = "git") -> tuple[Any, Any]:
    with amd_machine("gfx942", release), stub_vllm(version=version, base=ROCM):
        return backend().customize_spec(SPEC), backend().supported_kv_cache_layouts()


def test_vllm_is_asked_for_as_many_bytes_with_keys_before_values() -> None:
    spec, layouts = asked("0.30.0")
    assert layouts == (CacheLayouts.LHBNC,)
    assert spec == replace(SPEC, num_head_slots=2, state_content_bytes=2 * 128 * 2)
    view = spec.view(5, layouts[0])
    assert (view.shape, view.numel()) == ((5, 2, 16, 256), SPEC.view(5, CacheLayouts.LBHNC).numel())
    assert all(half.is_contiguous() for half in view.unbind(1))


@pytest.mark.parametrize(
    ("version", "release", "value"), [("0.28.0", "git", "1"), ("0.30.0", "pypi", "1"), ("0.30.0", "git", "0")]
)
def test_where_a_part_is_missing_or_nobody_asks_vllms_cache_is_as_ever(
    version: str, release: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FUSION, value)
    assert asked(version, release) == (SPEC, None)


@pytest.mark.usefixtures("dtype_of_the_model")
@pytest.mark.parametrize(("sinks", "layout"), [(False, "shuffled"), (True, "nhd")])
def test_a_layer_norms_rotates_writes_and_attends_in_it(sinks: bool, layout: str) -> None:
    problem = make_problem(8, 2, 128, "bfloat16")
    step = make_step(problem, [(1, 17), (1, 40), (20, 20)], rotary_dim=128, norms=True, scattered=True)
    with amd_machine("gfx942"), stub_vllm(version="0.30.0", base=ROCM), torch.inference_mode():
        from atom_vllm.mixers.attention import AtomAttention
        from atom_vllm.mixers.metadata import AtomMetadata, geometry_of

        spec = backend().customize_spec(SPEC)
        cache = spec.view(step.caches[0].shape[0], backend().supported_kv_cache_layouts()[0])
        impl = AtomAttention(8, 128, problem.scale, 2, sinks=torch.full((8,), -30.0) if sinks else None)
        plan, caches = impl.bind(cache)
        assert plan.layout.name == layout
        for mine, given in zip(caches, from_nhd(plan.layout, *step.caches), strict=True):
            mine.copy_(given)
        with recorded_calls() as calls:
            metadata = AtomMetadata(geometry_of(described(step.geometry)))
            got = impl.mix(step.inputs, cache, metadata, step.prologue)
        assert (KERNEL in calls.names) == (layout == "shuffled")
        written = restore_nhd(plan.layout, impl.bind(cache)[1])
    own = tuple(one.clone() for one in step.caches)
    expected = step.run_in_place(select_mixer(problem), own)
    torch.testing.assert_close(got.float(), expected.float(), atol=3e-2, rtol=3e-2)
    for mine, theirs in zip(written, own, strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), atol=3e-2, rtol=3e-2)
