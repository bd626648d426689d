"""What each of several engines gets of a machine: devices, threads, memory and folders; and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom_core.config import ConfigError, EngineArgs, resolve_config
from atom_core.config.sections import ParallelConfig
from atom_core.executor.factory import make_executor
from atom_core.worker.ranks.meeting import Engines
from atom_kernels.platform import Platform, detect_platform
from atom_models import open_checkpoint


def resolved(model: Path, platform: Platform, *, rank: int = 0, **settings: Any):
    args = EngineArgs(model=str(model), **settings)
    return resolve_config(args, open_checkpoint(model), platform, data_parallel_rank=rank)


def machine_of(num_gpus: int) -> Platform:
    return replace(Platform.nvidia("sm_90"), num_devices=num_gpus)


def test_each_engine_has_the_devices_behind_those_of_the_one_before(tiny_llama: Path):
    parallel = [
        resolved(tiny_llama, machine_of(4), rank=rank, data_parallel_size=2, tensor_parallel_size=2).parallel
        for rank in range(2)
    ]
    assert [each.first_device for each in parallel] == [0, 2]


def test_an_engine_without_further_ranks_takes_its_device_for_itself(tiny_llama: Path, monkeypatch):
    taken: list[int] = []
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    for rank, size in ((1, 2), (0, 1)):
        make_executor(resolved(tiny_llama, machine_of(2), rank=rank, data_parallel_size=size))
    assert taken == [1]  # a program with one engine keeps the device that it chose


def test_ranks_of_an_engine_are_told_its_first_device_and_meet_nobody_elses(tiny_llama: Path):
    given: list[dict[str, object]] = []

    def start_ranks(*_: object, **settings: object):
        given.append(settings)
        raise InterruptedError

    from atom_core.executor.processes.executor import ProcessExecutor

    config = resolved(tiny_llama, machine_of(4), rank=1, data_parallel_size=2, tensor_parallel_size=2)
    with pytest.raises(InterruptedError):
        ProcessExecutor(config, start_ranks).start()
    assert (given[0]["first_device"], given[0]["engines"]) == (2, Engines())


@pytest.mark.parametrize(
    ("settings", "num_gpus", "says"),
    [
        ({"data_parallel_size": 4}, 2, "data_parallel_size is 4 with tensor_parallel_size 1: 4 ranks; each.*may use 2"),
        ({"data_parallel_size": 2, "tensor_parallel_size": 2}, 3, "2 with tensor_parallel_size 2: 4 ranks;.*use 3"),
    ],
)
def test_more_ranks_than_gpus_are_refused(settings, num_gpus: int, says: str, tiny_llama: Path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    with pytest.raises(ConfigError, match=says):
        resolved(tiny_llama, machine_of(num_gpus), **settings)


def test_engines_share_the_cores(tiny_llama: Path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    platform = replace(detect_platform(), num_cores=8)
    config = resolved(tiny_llama, platform, data_parallel_size=2, tensor_parallel_size=2)
    assert config.parallel.num_threads == 2
    assert "num_threads = 2: the cores this process may use, shared by 4 ranks" in config.choices


def test_folders_of_traces_name_the_engine_where_there_are_several():
    assert ParallelConfig(1).name_of(0) == "rank_0"
    assert ParallelConfig(1, 2, 2, 1).name_of(1) == "dp1_tp1"


@pytest.mark.parametrize("value", [0, -1, "two"])
def test_a_number_of_engines_that_is_none_is_refused(value: object):
    with pytest.raises(ConfigError, match="data_parallel_size is"):
        EngineArgs(data_parallel_size=value)  # type: ignore[arg-type]
