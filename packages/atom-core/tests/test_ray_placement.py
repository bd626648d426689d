"""Where ranks are that Ray has placed: those of a node follow each other, and see the GPUs of each other."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from atom_core import EngineArgs, settings
from atom_core.config import resolve_config
from atom_core.executor.factory import make_launcher
from atom_core.executor.launchers.ray_host import HostFacts
from atom_core.executor.launchers.ray_launcher import RayLauncher, in_order
from atom_core.worker.ranks.meeting import Place
from atom_kernels.platform import Platform
from atom_models import open_checkpoint

ADDRESSES = {"x": "10.0.0.2", "y": "10.0.0.1"}


def placed(*facts: HostFacts, first: str = "10.0.0.2") -> list[tuple[str, Place, str]]:
    names = [f"{each.node}{'+'.join(each.devices)}" for each in facts]
    return [(*each,) for each in in_order(names, facts, ADDRESSES, first=first)]


def test_ranks_of_the_engines_node_come_first_and_those_of_a_node_together():
    facts = [HostFacts("y", ("0",)), HostFacts("x", ("0",)), HostFacts("y", ("1",)), HostFacts("x", ("1",))]
    assert [name for name, _, _ in placed(*facts)] == ["x0", "x1", "y0", "y1"]
    assert [name for name, _, _ in placed(*facts, first="10.0.0.1")] == ["y0", "y1", "x0", "x1"]


def test_a_rank_sees_the_gpus_of_all_ranks_of_its_node_and_has_its_own_among_them():
    facts = [HostFacts("x", ("10",)), HostFacts("y", ("3",)), HostFacts("x", ("9",))]
    assert [(place, devices) for _, place, devices in placed(*facts)] == [
        (Place("10.0.0.2", 0), "9,10"),
        (Place("10.0.0.2", 1), "9,10"),
        (Place("10.0.0.1", 0), "3"),
    ]


def test_ranks_on_cpus_have_no_devices():
    assert [devices for _, _, devices in placed(HostFacts("x", ()), HostFacts("y", ()))] == ["", ""]


def test_gpus_are_named_where_ray_named_them():
    given = {"HIP_VISIBLE_DEVICES": "1", "PATH": "/bin"}
    assert settings.with_devices(given, "0,1") == {"HIP_VISIBLE_DEVICES": "0,1", "PATH": "/bin"}
    assert settings.with_devices(given, "") == given


def test_ranks_talk_over_the_network_that_they_are_told(monkeypatch: pytest.MonkeyPatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert not settings.names_rank_interfaces()
    environment = settings.rank_environment(3, "eth7")
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth7", "eth7")
    assert settings.rank_environment(3)["GLOO_SOCKET_IFNAME"] == "lo"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "ib0")
    assert settings.names_rank_interfaces()
    assert settings.rank_environment(3, "eth7")["NCCL_SOCKET_IFNAME"] == "ib0"


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No variable of Ray is set, and no cluster runs."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return monkeypatch


def test_a_cluster_of_this_host_alone_is_for_this_host_and_has_a_token_of_its_own(without_ray):
    tokens = set()
    for _ in range(2):
        os.environ.pop("RAY_AUTH_TOKEN", None)
        settings.prepare_ray()
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
        assert os.environ["RAY_AUTH_MODE"] == "token"
        tokens.add(os.environ["RAY_AUTH_TOKEN"])
    assert len(tokens) == 2


@pytest.mark.parametrize("told_by", ["a variable", "a file"])
def test_how_a_cluster_that_runs_is_reached_is_left_alone(told_by: str, without_ray, tmp_path: Path):
    if told_by == "a variable":
        without_ray.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    else:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    settings.prepare_ray()
    assert {"RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}.isdisjoint(os.environ)


def test_an_engine_on_ray_may_have_more_ranks_than_this_node_has_gpus(tiny_llama: Path, monkeypatch):
    with monkeypatch.context() as installed:
        installed.setattr("importlib.util.find_spec", lambda name: object())
        args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=4, distributed_executor_backend="ray")
    platform = replace(Platform.nvidia("sm_90"), num_devices=2)
    config = resolve_config(args, open_checkpoint(tiny_llama), platform)
    assert config.parallel.executor_backend == "ray"
    assert isinstance(make_launcher("ray"), RayLauncher)
