"""How many threads there may be, and how they wait for each other on a quiet and on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atom_kernels.host_threads import usable_cores
from atom_kernels.host_threads.cores import cgroup_quota
from atom_kernels.host_threads.openmp_spin import openmp_spin
from atom_kernels.host_threads.waiting import FEWEST_CALM_LOOKS, LOOK_SECONDS, WaitPolicy, wait_policy

needs_gnu_openmp = pytest.mark.skipif(openmp_spin() is None, reason="torch's OpenMP here is not GNU's")


class SpinRecord:
    """Notes what a policy asks for."""

    def __init__(self) -> None:
        self.is_short = False

    def shorten(self) -> None:
        self.is_short = True

    def lengthen(self) -> None:
        self.is_short = False


class Machine:
    """A policy on a machine whose load a test sets; time passes by looks."""

    def __init__(self) -> None:
        self.seconds, self.load, self.spin = 0.0, 0.0, SpinRecord()
        self.policy = WaitPolicy(self.spin, lambda: self.load, clock=lambda: self.seconds)

    def looks(self, load: float | None, count: int = 1) -> bool:
        """Whether spinning is short after `count` looks at that load."""
        self.load = load
        for _ in range(count):
            self.seconds += LOOK_SECONDS
            self.policy.look()
        return self.spin.is_short

    def looks_until_long(self, load: float = 0.0) -> int:
        return next(count for count in range(1, 10_000) if not self.looks(load))


def make_groups(root, quotas, membership):
    for path, quota in quotas.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        if quota is None:
            continue
        if " " in quota:
            (root / path / "cpu.max").write_text(quota + "\n")
        else:
            (root / path / "cpu.cfs_quota_us").write_text(quota + "\n")
            (root / path / "cpu.cfs_period_us").write_text("100000\n")
    file = root / "membership"
    file.write_text(membership + "\n")
    return cgroup_quota(file, root)


@pytest.mark.parametrize(
    ("quotas", "membership", "cores"),
    [
        ({"": "200000 100000"}, "0::/", 2.0),
        ({"": "max 100000"}, "0::/", None),
        ({"": None}, "0::/", None),
        ({"pod": "400000 100000", "pod/box": "150000 100000"}, "0::/pod/box", 1.5),
        ({"pod": "100000 100000", "pod/box": "max 100000"}, "0::/pod/box", 1.0),
        ({"": "300000 100000"}, "0::/a/path/of/the/host", 3.0),
        ({"cpu/docker/1": "250000"}, "4:memory:/\n3:cpu:/docker/1\n0::/", 2.5),
        ({"cpu,cpuacct/box": "-1"}, "3:cpu,cpuacct:/box", None),
        ({"cpu,cpuacct/box": "50000"}, "3:cpu,cpuacct:/box", 0.5),
    ],
    ids=["v2", "v2-max", "v2-none", "nested", "outer-binds", "path-of-the-host", "v1", "v1-none", "v1-both"],
)
def test_a_cpu_quota_of_a_control_group_is_read(tmp_path, quotas, membership, cores):
    assert make_groups(tmp_path, quotas, membership) == cores


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.9, 2), (0.5, 1), (16.0, 4)])
def test_threads_follow_the_quota_as_well_as_the_affinity(quota, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr("atom_kernels.host_threads.cores.cgroup_quota", lambda: quota)
    assert usable_cores() == cores


def test_threads_sleep_where_the_machine_is_busy_and_spin_where_it_is_quiet():
    machine = Machine()
    assert not machine.looks(0.02, count=50)
    assert machine.looks(0.3, count=2)
    assert machine.looks(0.02, count=FEWEST_CALM_LOOKS - 1)
    assert not machine.looks(0.02)


def test_one_busy_look_among_calm_ones_changes_nothing():
    machine = Machine()
    for _ in range(3):
        assert not machine.looks(0.02, count=50)
        assert not machine.looks(0.3)
    assert not machine.looks(0.02)


def test_a_first_busy_look_and_one_soon_after_spinning_came_back_are_enough():
    machine = Machine()
    assert machine.looks(0.3)
    machine.looks_until_long()
    assert not machine.looks(0.02, count=FEWEST_CALM_LOOKS - 1)
    assert machine.looks(0.3)


def test_a_busy_look_begins_the_calm_anew():
    machine = Machine()
    machine.looks(0.3)
    machine.looks(0.0, count=FEWEST_CALM_LOOKS - 1)
    machine.looks(0.3)
    assert machine.looks_until_long() == FEWEST_CALM_LOOKS


def test_spinning_that_was_too_soon_comes_back_later_each_time_up_to_a_minute():
    machine = Machine()
    waits = []
    for _ in range(8):
        machine.looks(0.3)
        waits.append(machine.looks_until_long())
    assert waits == [20, 40, 80, 160, 320, 640, 640, 640]
    machine.looks(0.0, count=640)
    machine.looks(0.3, count=2)
    assert machine.looks_until_long() == FEWEST_CALM_LOOKS


def test_time_in_which_nothing_ran_says_nothing():
    machine = Machine()
    machine.looks(0.3)
    assert machine.looks(None, count=1000)


def test_looks_are_rare():
    machine, asked = Machine(), []
    policy = WaitPolicy(machine.spin, lambda: asked.append(1) or 0.0, clock=lambda: machine.seconds)
    for _ in range(1000):
        machine.seconds += LOOK_SECONDS / 100
        policy.look()
    assert len(asked) <= 10


@pytest.mark.timing
@needs_gnu_openmp
def test_threads_that_wait_burn_less_time_while_spinning_is_short():
    # Seconds of CPU in 20 waits of 10 ms after a parallel operator; the load of the machine does not change them.
    code = """
        import time, torch
        from atom_kernels.host_threads.openmp_spin import openmp_spin
        torch.set_num_threads(2)
        x = torch.zeros(1 << 18)
        def burnt():
            x.add_(1)
            start = time.process_time()
            for _ in range(20):
                x.add_(1)
                time.sleep(0.01)
            return time.process_time() - start
        spin = openmp_spin()
        before = burnt()
        spin.shorten()
        short = burnt()
        spin.lengthen()
        print(before, short, burnt())
    """
    before, short, after = map(float, run(code).split())
    assert short < before / 3
    assert short < after / 3


@pytest.mark.timing
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not count waiting")
def test_waiting_for_a_core_is_measured():
    code = """
        import os, subprocess, sys, time
        from atom_kernels.host_threads.delays import ThreadDelays
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        delays = ThreadDelays()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        print(delays.share())
        other.kill()
        other.wait()
        delays.share()
        time.sleep(0.3)
        print(delays.share())
    """
    busy, asleep = run(code).split()
    assert 0.2 < float(busy) <= 1.0
    assert asleep == "None"


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_an_environment_that_says_how_threads_wait_is_left_alone(name, monkeypatch):
    wait_policy.cache_clear()
    monkeypatch.setenv(name, "PASSIVE" if name == "OMP_WAIT_POLICY" else "300000")
    try:
        assert wait_policy() is None
    finally:
        wait_policy.cache_clear()


def test_one_policy_serves_the_whole_process():
    assert wait_policy() is wait_policy()


def run(code: str) -> str:
    """What a script prints in a process of its own, with two threads."""
    source = "\n".join(line[8:] for line in code.splitlines())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    return done.stdout
