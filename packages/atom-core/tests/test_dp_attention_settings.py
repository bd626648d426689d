"""What `enable_dp_attention` makes of an engine's settings, and with which it does not go."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine
from atom_core.config import ConfigError, EngineArgs, resolve_config
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import resolve
from atom_core.executor.factory import make_executor
from atom_core.executor.processes.executor import ProcessExecutor
from atom_kernels.platform import Platform, detect_platform
from atom_models import CheckpointError, open_checkpoint
from emulated_mori import emulated_mori


def resolved(model: Path, platform: Platform | None = None, **settings: Any):
    args = EngineArgs(model=str(model), enable_dp_attention=True, num_threads=1, **settings)
    return resolve_config(args, open_checkpoint(model), platform or detect_platform(), data_parallel_rank=1)


@pytest.mark.parametrize(
    ("given", "engines", "ranks"),
    [((2, 1), 2, 1), ((1, 2), 2, 1), ((2, 2), 2, 2)],
    ids=["a rank for each device", "engines", "engines of ranks"],
)
def test_each_rank_is_an_engine_unless_engines_are_asked_for(given, engines, ranks, tiny_family):
    tensor, data = given
    config = resolved(tiny_family("qwen3_moe"), tensor_parallel_size=tensor, data_parallel_size=data)
    parallel = config.parallel
    assert (parallel.data_parallel_size, parallel.tensor_parallel_size, parallel.first_device) == (
        engines,
        ranks,
        ranks,
    )
    assert (parallel.enable_dp_attention, parallel.enable_expert_parallel) == (True, True)
    assert isinstance(make_executor(config), ProcessExecutor)


def test_there_are_as_many_engines_as_cores_at_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(ConfigError, match="data_parallel_size is 4, more than this machine has cores"):
        EngineArgs(tensor_parallel_size=4, enable_dp_attention=True)


def test_one_rank_shares_nothing(tiny_family):
    config = resolved(tiny_family("qwen3_moe"))
    assert not config.parallel.enable_dp_attention
    assert "enable_dp_attention = off: one rank has all requests and all experts" in config.choices


def test_a_model_without_experts_is_told_what_to_take_instead(tiny_llama: Path):
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no experts: leave it out, and give data_parallel_size"):
        resolved(tiny_llama, tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"level": 3}, "enable_dp_attention and level 3 do not go together"),
        ({"batch_invariant": True}, "enable_dp_attention and batch_invariant do not go together"),
        ({"pipeline_parallel_size": 2}, "enable_dp_attention and pipeline_parallel_size 2 do not"),
        ({"distributed_executor_backend": "ray"}, "enable_dp_attention and distributed_executor_backend ray do not"),
        ({"cudagraph_mode": "full"}, "enable_dp_attention and cudagraph_mode full do not"),
        ({"cudagraph_capture_sizes": (1, 2)}, "enable_dp_attention and cudagraph_capture_sizes do not"),
    ],
    ids=str,
)
def test_what_does_not_go_with_it_is_refused_in_one_line(settings, says):
    with pytest.raises(ConfigError, match=says):
        EngineArgs(tensor_parallel_size=2, enable_dp_attention=True, **settings)


def test_how_rows_are_exchanged_reaches_the_model_and_needs_engines_that_share_experts(tiny_family):
    config = resolved(tiny_family("qwen3_moe"), tensor_parallel_size=2, expert_exchange="all-to-all")
    assert config.parallel.expert_exchange == "all-to-all"
    with pytest.raises(ConfigError, match="expert_exchange gather is about rows of engines that share experts: give"):
        EngineArgs(tensor_parallel_size=2, enable_expert_parallel=True, expert_exchange="gather")


AMD = replace(Platform.rocm("gfx942"), num_devices=8)


@pytest.mark.parametrize("asked", ["auto", "mori"])
def test_rows_go_by_mori_where_it_is_there_and_a_line_says_so(asked, tiny_family):
    with emulated_mori():
        config = resolved(tiny_family("qwen3_moe"), AMD, tensor_parallel_size=2, expert_exchange=asked)
    assert config.parallel.expert_exchange == "mori"
    assert "expert_exchange = mori: amd-mori 1.2.4 carries rows between engines" in config.choices


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tensor_parallel_size": 4, "data_parallel_size": 2}, "takes each engine for one device, and these have 4"),
        ({"tensor_parallel_size": 2, "dtype": "float16"}, "sums rows of bfloat16 and float32, not of float16"),
    ],
)
def test_where_mori_cannot_serve_auto_leaves_it_out_and_asking_for_it_is_refused(settings, says, tiny_family):
    with emulated_mori():
        assert resolved(tiny_family("qwen3_moe"), AMD, **settings).parallel.expert_exchange == "auto"
        with pytest.raises(
            ConfigError, match=f"expert_exchange is mori, and MORI {says}; leave it out, or give all-to"
        ):
            resolved(tiny_family("qwen3_moe"), AMD, expert_exchange="mori", **settings)


def test_mori_is_refused_where_there_is_none(tiny_family):
    model, settings = tiny_family("qwen3_moe"), {"tensor_parallel_size": 2, "expert_exchange": "mori"}
    with pytest.raises(ConfigError, match="expert_exchange is mori, and MORI is for AMD GPUs, this is "):
        resolved(model, replace(Platform.nvidia("sm_90"), num_devices=2), **settings)


def test_no_graphs_are_captured_and_a_line_says_so(tiny_family):
    machine = replace(Platform.nvidia("sm_90"), num_devices=2)
    config = resolved(tiny_family("qwen3_moe"), machine, tensor_parallel_size=2)
    assert config.compile.graph_mode == "none"
    assert [line for line in config.choices if line.startswith("cudagraph_mode = none: ")]


def test_fewer_experts_than_ranks_of_all_engines_are_refused_before_a_process_is_started(tiny_family, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    with pytest.raises(CheckpointError, match=r"there are 4 experts, and each of 16 tensor-parallel ranks needs one"):
        LLMEngine(str(tiny_family("mixtral")), data_parallel_size=8, tensor_parallel_size=2, enable_dp_attention=True)


def test_transformers_layers_are_refused(tiny_family):
    settings = {"tensor_parallel_size": 2, "enable_dp_attention": True, "model_impl": "transformers"}
    with pytest.raises(ConfigError, match="transformers' layers are not split: leave enable_dp_attention out"):
        LLMEngine(str(tiny_family("mixtral")), **settings)


def test_engines_that_need_each_other_are_not_started_one_by_one(tiny_family):
    args = EngineArgs(model=str(tiny_family("mixtral")), tensor_parallel_size=2, enable_dp_attention=True)
    with pytest.raises(ConfigError, match="are started together"):
        EngineCore(resolve(args, open_checkpoint(args.model)))
