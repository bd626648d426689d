"""vLLM's cache, keys and values side by side and head by head, serves our kernels as it lies."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.attention import AttentionProblem
from atom_kernels.attention.cases import make_step
from atom_kernels.mixers import CacheFormat, select_mixer
from atom_vllm.mixers.cache_view import packed_layout, plan_over_view, split_view

REQUESTS = ((1, 1), (1, 64), (1, 257), (3, 130), (20, 20), (90, 150))


def problem(dtype: str, **rules: object) -> AttentionProblem:
    values = {"scale": 0.2, "dtype": dtype, "cache": CacheFormat(dtype), "block_size": 16} | rules
    return AttentionProblem(num_heads=6, num_kv_heads=2, head_dim=32, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [{}, {"sliding_window": 21}, {"has_sinks": True}, {"soft_cap": 5.0}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_over_the_view_equals_attention_over_our_own_cache(dtype: str, rules: dict) -> None:
    asked = problem(dtype, **rules)
    step = make_step(asked, REQUESTS, scattered=True)
    own = select_mixer(asked)
    viewed = plan_over_view(asked)
    assert viewed.layout == packed_layout(asked)
    keys, values = step.caches
    packed = torch.cat((keys, values), dim=-1).transpose(1, 2).contiguous()
    halves = split_view(packed)
    assert halves[0].stride() == viewed.layout.tensors[0].strides
    assert torch.equal(step.run_in_place(viewed, halves), step.run_in_place(own, (keys.clone(), values.clone())))


def test_new_keys_and_values_land_in_vllms_bytes() -> None:
    asked = problem("float32")
    step = make_step(asked, ((2, 2),))
    keys, values = (torch.zeros_like(cache) for cache in step.caches)
    packed = torch.zeros(keys.shape[0], 2, 16, 64)
    step.run_in_place(plan_over_view(asked), split_view(packed))
    step.run_in_place(select_mixer(asked), (keys, values))
    assert packed.any()
    assert torch.equal(packed[..., :32].transpose(1, 2), keys)
    assert torch.equal(packed[..., 32:].transpose(1, 2), values)
