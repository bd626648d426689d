"""The lines of the banner that depend on how an engine is spread."""

from __future__ import annotations

import pytest

from atom_core.engine.info import EngineInfo
from atom_server.banner import describe_machine


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        ({}, "cpu in float32, 3 threads"),
        ({"tensor_parallel_size": 2}, "2 ranks (tensor parallel) on cpu in float32, 3 threads each"),
        (
            {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            "2 ranks (tensor parallel, whole experts on each) on cpu in float32, 3 threads each",
        ),
        (
            {"data_parallel_size": 2, "enable_expert_parallel": True, "enable_dp_attention": True},
            "2 engines (data parallel, experts shared) on cpu in float32, 3 threads each",
        ),
        (
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
            "4 ranks (tensor parallel, context shared by 2) on cpu in float32, 3 threads each",
        ),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 4},
            "4 engines (data parallel) of 3 stages (pipeline parallel) of 2 ranks (tensor parallel) on cpu in float32, "
            "3 threads each",
        ),
    ],
    ids=["one rank", "ranks", "whole experts", "shared experts", "a shared context", "stages of engines"],
)
def test_the_banner_tells_how_an_engine_is_spread(spread: dict[str, int], expected: str):
    info = EngineInfo(
        model="m",
        model_path="/m",
        architecture="A",
        max_model_len=64,
        vocab_size=8,
        dtype="float32",
        kv_cache_dtype="float32",
        device="cpu",
        num_blocks=4,
        block_size=16,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        enable_prefix_caching=True,
        eos_token_ids=(),
        num_threads=3,
        **spread,
    )
    assert describe_machine(info) == expected
