"""How layers make pages of equal bytes, and that the bytes which their specs count are the bytes allocated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_core import LLMEngine, SamplingParams
from atom_core.worker.cache.pages import plan_pages
from atom_core.worker.cache.tensors import allocate_caches
from atom_core.worker.devices.cpu import Cpu
from atom_kernels.protocols import CacheLayout, CacheTensor, Pages
from tiny_architectures import make_tiny

BLOCK_SIZE = 16
LONG = 1 << 20


def make_layers(windows, *, num_kv_heads=lambda window: 2):
    """Layers without a model: one for each window, in order."""
    layers: dict[str, Any] = {}
    for index, window in enumerate(windows):
        heads = num_kv_heads(window)
        tensors = tuple(CacheTensor(name, (BLOCK_SIZE, heads, 8), "bfloat16") for name in ("key", "value"))
        problem = SimpleNamespace(keeps=Pages(window))
        plan = SimpleNamespace(layout=CacheLayout("nhd", BLOCK_SIZE, tensors), problem=problem)
        layers[f"layers.{index}"] = SimpleNamespace(plan=plan)
    return layers


def hybrid(num_layers, pattern, window=1024):
    """`pattern - 1` local layers, then a global one, and so on."""
    return make_layers([None if (i + 1) % pattern == 0 else window for i in range(num_layers)])


def shape_of(pages):
    """Number of layers of each group, by window."""
    sizes: dict[Any, list[int]] = {}
    for group in pages.groups:
        sizes.setdefault(group.spec.window, []).append(len(group.layers))
    return sizes, len(pages.places)


def allocated_bytes(caches):
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for c in caches for tensor in c}
    return sum(storages.values())


def test_one_kind_of_layers_is_one_group_with_nothing_unused():
    for window in (None, 4096):
        pages = plan_pages(make_layers([window] * 5), LONG)
        assert shape_of(pages) == ({window: [5]}, 5)
        assert pages.page_bytes == pages.token_bytes * BLOCK_SIZE


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (hybrid(24, 2, 128), ({128: [12], None: [12]}, 12)),  # GPT-OSS 20B
        (hybrid(48, 6), ({1024: [8] * 5, None: [8]}, 8)),  # Gemma 3 12B
        (hybrid(62, 6), ({1024: [10] * 5 + [2], None: [10]}, 10)),  # Gemma 3 27B
        (hybrid(34, 6), ({1024: [5] * 5 + [4], None: [5]}, 5)),  # Gemma 3 4B
        (hybrid(26, 6, 512), ({512: [4] * 5 + [2], None: [4]}, 4)),  # Gemma 3 1B
    ],
)
def test_hybrid_models_waste_little(layers, expected):
    pages = plan_pages(layers, LONG)
    assert shape_of(pages) == expected
    assert sorted(name for group in pages.groups for name in group.layers) == sorted(layers)


def test_a_window_as_long_as_the_context_is_none():
    pages = plan_pages(hybrid(12, 6, 1024), 1024)
    assert shape_of(pages) == ({None: [12]}, 12)


def test_layers_whose_blocks_differ_in_bytes_keep_the_whole_context_in_one_group():
    layers = make_layers([None, 64, 64], num_kv_heads=lambda window: 2 if window else 1)
    pages = plan_pages(layers, LONG)
    assert shape_of(pages) == ({None: [3]}, 3)
    assert pages.page_bytes == sum(layer.plan.layout.block_bytes for layer in layers.values())


def test_layers_in_one_place_share_its_memory_and_no_other():
    layers = hybrid(6, 3)
    pages = plan_pages(layers, LONG)
    caches = allocate_caches(layers, pages, 7, Cpu())
    assert allocated_bytes(caches.values()) == 7 * pages.page_bytes
    for group in pages.groups:
        starts = [caches[name][0].data_ptr() for name in group.layers]
        assert len(set(starts)) == len(starts)
    assert len({cache[0].data_ptr() for cache in caches.values()}) == len(pages.places)
    assert all(tensor.shape == (7, BLOCK_SIZE, 2, 8) for cache in caches.values() for tensor in cache)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2-window", "gemma3", "gpt_oss"])
def test_the_bytes_allocated_are_those_of_keys_and_values(family, tmp_path):
    folder = make_tiny(family, tmp_path)
    with LLMEngine(str(folder), dtype="float32", num_kv_blocks=12, num_threads=1) as engine:
        model = engine._core._executor._runner.running.model  # type: ignore[attr-defined]
        caches, layers = model.cached.kv_caches, model.mixers
        problems = {name: layer.problem for name, layer in layers.items()}
        a_block = {name: 2 * p.num_kv_heads * p.head_dim * 4 * BLOCK_SIZE for name, p in problems.items()}
        assert allocated_bytes(caches.values()) == sum(a_block.values()) * 12
        for name, cache in caches.items():
            assert sum(t[0].nbytes for t in cache) == a_block[name]
        assert engine.stats.num_blocks * len(model.cached.plans) >= 12


def test_a_warm_up_has_a_block_of_its_own(tiny_llama):
    shapes = []
    for warmup in ("none", "full"):
        with LLMEngine(str(tiny_llama), dtype="float32", num_kv_blocks=12, num_threads=1, warmup=warmup) as engine:
            caches = engine._core._executor._runner.running.model.cached.kv_caches  # type: ignore[attr-defined]
            shapes.append(next(iter(caches.values()))[0].shape)
            assert engine.stats.num_blocks == 12
    assert [shape[0] for shape in shapes] == [12, 13]


def test_a_hybrid_engine_holds_less_than_the_whole_context_in_each_layer(tmp_path):
    folder = make_tiny("gemma3", tmp_path)
    prompt, params = list(range(3, 200)), SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    with LLMEngine(str(folder), dtype="float32", num_threads=1, num_kv_blocks=16) as engine:
        whole = engine.generate([prompt], params, use_tqdm=False)[0]["token_ids"]
    # 15 blocks for the global layer, and for each of three local ones what a step of 16 and the window take: 24 in all.
    small = {"num_kv_blocks": 8, "max_num_batched_tokens": 16, "max_model_len": 240}
    with LLMEngine(str(folder), dtype="float32", num_threads=1, **small) as engine:
        assert engine.stats.num_blocks == 32
        assert engine.generate([prompt], params, use_tqdm=False)[0]["token_ids"] == whole
        assert engine.stats.num_free_blocks == 32


def test_memory_is_zero_before_it_is_written():
    layers = hybrid(4, 2)
    caches = allocate_caches(layers, plan_pages(layers, LONG), 3, Cpu())
    assert all(not torch.count_nonzero(tensor) for cache in caches.values() for tensor in cache)
