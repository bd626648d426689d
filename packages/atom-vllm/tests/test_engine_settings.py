"""vLLM's configuration under our names, field by field."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from atom_vllm.engine_settings import EngineSettings, translate

# vLLM's section and field -> ours, with a value that no default has.
MAPPING = {
    ("model_config", "model"): ("model", "/models/one"),
    ("scheduler_config", "max_num_batched_tokens"): ("max_num_batched_tokens", 4097),
    ("scheduler_config", "max_num_seqs"): ("max_num_seqs", 33),
    ("model_config", "max_model_len"): ("max_model_len", 2049),
    ("cache_config", "gpu_memory_utilization"): ("gpu_memory_utilization", 0.77),
    ("parallel_config", "tensor_parallel_size"): ("tensor_parallel_size", 3),
    ("parallel_config", "data_parallel_size"): ("data_parallel_size", 7),
    ("parallel_config", "decode_context_parallel_size"): ("decode_context_parallel_size", 5),
    ("cache_config", "block_size"): ("block_size", 48),
    ("cache_config", "num_gpu_blocks"): ("num_kv_blocks", 1234),
    ("cache_config", "cache_dtype"): ("kv_cache_dtype", "fp8"),
    ("cache_config", "enable_prefix_caching"): ("enable_prefix_caching", True),
    ("parallel_config", "enable_expert_parallel"): ("enable_expert_parallel", True),
    ("compilation_config", "mode"): ("level", 3),
}


@pytest.fixture
def vllm_config() -> Any:
    sections: dict[str, SimpleNamespace] = {}
    for (section, field), (_, value) in MAPPING.items():
        setattr(sections.setdefault(section, SimpleNamespace()), field, value)
    return SimpleNamespace(**sections)


@pytest.mark.parametrize(("ours", "value"), MAPPING.values(), ids=[name for name, _ in MAPPING.values()])
def test_each_setting_comes_from_vllm(vllm_config: Any, ours: str, value: Any) -> None:
    assert getattr(translate(vllm_config), ours) == value


def test_nothing_is_captured_or_compiled_by_atom(vllm_config: Any) -> None:
    assert translate(vllm_config).enforce_eager is True


def test_every_setting_is_covered_here() -> None:
    covered = {name for name, _ in MAPPING.values()} | {"enforce_eager"}
    assert covered == {field.name for field in dataclasses.fields(EngineSettings)}


def test_the_length_falls_back_to_the_schedulers(vllm_config: Any) -> None:
    vllm_config.model_config.max_model_len = None
    vllm_config.scheduler_config.max_model_len = 777
    assert translate(vllm_config).max_model_len == 777
