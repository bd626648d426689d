"""The engine allocates what each plan's layout says, also where layers of one model want different layouts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from atom_core.config import resolve_config
from atom_core.config.engine_args import EngineArgs
from atom_core.worker.cache.pages import plan_pages
from atom_core.worker.cache.tensors import allocate_caches
from atom_core.worker.devices.cpu import Cpu
from atom_core.worker.model.engine_model import EngineModel
from atom_kernels.aiter.attention.layouts import from_nhd, restore_nhd, scaled_layout
from atom_kernels.attention.ops import make_problem
from atom_kernels.mixers import select_mixer
from atom_kernels.platform import Platform
from atom_kernels.protocols import CacheFormat, Pages
from atom_models import open_checkpoint

LONG = 1 << 20


def layers_with(layouts_of_windows):
    """Layers without a model, by name."""
    return {
        f"layers.{index}": SimpleNamespace(
            plan=SimpleNamespace(layout=layout, problem=SimpleNamespace(keeps=Pages(window)))
        )
        for index, (window, layout) in enumerate(layouts_of_windows)
    }


def planned(window):
    """On an MI300X: a layer with a window wants rows of tokens, one without wants shuffled blocks."""
    problem = make_problem(8, 2, 128, "bfloat16", sliding_window=window)
    return window, select_mixer(problem, Platform.rocm("gfx942")).layout


def test_layers_that_share_places_keep_their_own_layouts():
    layers = layers_with([planned(64), planned(None)] * 3)
    assert [layer.plan.layout.name for layer in layers.values()] == ["nhd", "shuffled"] * 3
    pages = plan_pages(layers, LONG)
    caches = allocate_caches(layers, pages, 5, Cpu())
    assert len(pages.groups) == 2
    for name, tensors in caches.items():
        wanted = layers[name].plan.layout.tensors
        assert [(tuple(x.shape[1:]), x.dtype) for x in tensors] == [(w.shape, torch.bfloat16) for w in wanted]
    first, second = (caches[group.layers[0]][0] for group in pages.groups)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_a_block_of_one_group_leaves_the_blocks_of_another_alone():
    layers = layers_with([planned(64), planned(None)])
    caches = allocate_caches(layers, plan_pages(layers, LONG), 4, Cpu())
    rows = torch.randn(2, 4, 16, 2, 128).bfloat16()
    packed = from_nhd(layers["layers.1"].plan.layout, *rows)
    for index in range(2):
        caches["layers.0"][index][1] = rows[index][1]
        caches["layers.1"][index][2] = packed[index][2]
    assert all(torch.equal(caches["layers.0"][index][1], rows[index][1]) for index in range(2))
    restored = restore_nhd(layers["layers.1"].plan.layout, caches["layers.1"])
    assert all(torch.equal(restored[index][2], rows[index][2]) for index in range(2))


def test_scales_are_allocated_beside_their_blocks():
    layout = scaled_layout(make_problem(8, 2, 128, "bfloat16", kv_cache_dtype="float8_e4m3fnuz"))
    layers = layers_with([(None, layout)] * 2)
    pages = plan_pages(layers, LONG)
    caches = allocate_caches(layers, pages, 3, Cpu())
    assert [tuple(x.shape) for x in caches["layers.1"][2:]] == [(3, 2, 16)] * 2
    assert pages.page_bytes == 2 * layout.block_bytes == pages.token_bytes * 16


@pytest.mark.parametrize(("arch", "dtype"), [("gfx942", "float8_e4m3fnuz"), ("gfx950", "float8_e4m3fn")])
def test_an_fp8_cache_is_of_the_kind_that_the_machine_computes_with(tiny_llama, arch, dtype):
    args = EngineArgs(model=str(tiny_llama), kv_cache_dtype="fp8", dtype="bfloat16")
    assert resolve_config(args, open_checkpoint(tiny_llama), Platform.rocm(arch)).cache.format == CacheFormat(dtype)


def test_prompts_over_scales_are_left_out_of_graphs():
    """Each is gathered first, into room for the longest request that there may be."""
    captured = {}
    for kv_cache_dtype in ("bfloat16", "float8_e4m3fnuz"):
        problem = make_problem(8, 2, 128, "bfloat16", kv_cache_dtype=kv_cache_dtype)
        plan = select_mixer(problem, Platform.rocm("gfx942"))
        model = EngineModel(
            run=lambda *_: torch.empty(0),
            compute_logits=lambda rows: rows,
            mixers={"a": SimpleNamespace(plan=plan)},
        )
        captured[kv_cache_dtype] = model.with_caches({"a": ()}, [["a"]]).captures_prompts
    assert captured == {"bfloat16": True, "float8_e4m3fnuz": False}
