"""How many threads there may be, and how they wait for each other on a quiet and on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atom_kernels.host_threads import usable_cores
from atom_kernels.host_threads.cores import cgroup_quota
from atom_kernels.host_threads.delays import ThreadDelays
from atom_kernels.host_threads.openmp_spin import openmp_spin
from atom_kernels.host_threads.waiting import (
    LONGEST_SLEEP,
    LOOK_SECONDS,
    MOST_WAITING,
    SHORTEST_SLEEP,
    WaitPolicy,
    wait_policy,
)

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
    """A policy on a machine whose load a test sets: how many of its threads wait for a core, on average."""

    def __init__(self, num_threads: int = 2) -> None:
        self.seconds, self.waiting, self.spin, self.num_asked, self.num_begun = 0.0, 0.0, SpinRecord(), 0, 0
        self.num_threads = num_threads
        self.policy = WaitPolicy(self.spin, self, clock=lambda: self.seconds)

    def begin(self) -> None:
        self.num_begun += 1

    def share(self) -> float | None:
        self.num_asked += 1
        return None if self.waiting is None else self.waiting / self.num_threads

    def looks(self, waiting: float | None, count: int = 1, *, seconds: float = LOOK_SECONDS) -> bool:
        """Whether threads sleep after `count` looks, so many seconds apart, at that load."""
        self.waiting = waiting
        for _ in range(count):
            self.seconds += seconds
            self.policy.look(self.num_threads)
        return self.spin.is_short

    def sleeps(self, waiting: float | None = 0.0, *, seconds: float = LOOK_SECONDS) -> float:
        """For how long threads sleep until they try to spin again."""
        start = self.seconds
        while self.looks(waiting, seconds=seconds):
            pass
        return self.seconds - start


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


CALM, BUSY = MOST_WAITING / 2, 2 * MOST_WAITING


def test_threads_sleep_where_the_machine_is_busy_and_spin_where_it_is_quiet():
    machine = Machine()
    assert not machine.looks(CALM, count=50)
    assert machine.looks(BUSY, count=2)
    assert round(machine.sleeps(CALM)) == SHORTEST_SLEEP
    assert not machine.looks(CALM, count=50)


@pytest.mark.parametrize("num_threads", [2, 4, 16])
def test_one_busy_program_beside_any_number_of_threads_is_noticed(num_threads):
    machine = Machine(num_threads)
    # One thread more than there are cores: each of them waits for the same part of the time.
    assert machine.looks(num_threads / (num_threads + 1), count=2)


@pytest.mark.parametrize("before", [0, 1, 50])
def test_one_busy_look_changes_nothing_not_even_the_first(before):
    machine = Machine()
    for _ in range(3):
        assert not machine.looks(CALM, count=before)
        assert not machine.looks(BUSY)
        assert not machine.looks(CALM)


def test_threads_that_sleep_are_not_looked_at_and_spin_again_although_they_seemed_to_wait():
    machine = Machine()
    machine.looks(BUSY, count=2)
    asked = machine.num_asked
    assert round(machine.sleeps(BUSY)) == SHORTEST_SLEEP
    assert machine.num_asked == asked


def test_what_threads_waited_while_they_slept_says_nothing_of_spinning():
    machine = Machine()
    machine.looks(BUSY, count=2)
    assert machine.num_begun == 0
    machine.sleeps()
    assert machine.num_begun == 1


@pytest.mark.parametrize("pause", [0.3, 0.7, 5.0])
def test_short_bursts_with_pauses_find_back_as_soon_as_one_long_run(pause):
    machine = Machine()
    machine.looks(BUSY, count=2)
    assert machine.sleeps(seconds=pause) <= SHORTEST_SLEEP + pause
    assert not machine.looks(CALM, count=50, seconds=pause)


def test_on_a_busy_machine_a_try_takes_one_look_and_tries_get_rare():
    machine = Machine()
    machine.looks(BUSY, count=2)
    sleeps = []
    for _ in range(8):
        sleeps.append(round(machine.sleeps(BUSY)))
        assert machine.looks(BUSY)
    assert sleeps == [2, 4, 8, 16, LONGEST_SLEEP, LONGEST_SLEEP, LONGEST_SLEEP, LONGEST_SLEEP]


def test_a_try_that_goes_well_forgets_how_long_the_machine_was_busy():
    machine = Machine()
    machine.looks(BUSY, count=2)
    for _ in range(8):
        machine.sleeps()
        machine.looks(BUSY)
    machine.sleeps()
    assert not machine.looks(CALM)
    assert machine.looks(BUSY, count=2)
    assert round(machine.sleeps()) == SHORTEST_SLEEP


def test_too_little_work_to_judge_by_says_nothing():
    machine = Machine()
    assert not machine.looks(BUSY)
    assert not machine.looks(None, count=1000)
    assert machine.looks(BUSY)


def test_looks_are_rare():
    machine = Machine()
    machine.looks(CALM, count=1000, seconds=LOOK_SECONDS / 100)
    assert machine.num_asked <= 10


def test_delays_are_counted_over_pauses_until_they_are_enough(monkeypatch):
    readings = iter([{"1": (0, 0)}, {"1": (40, 20)}, {"1": (60, 40), "2": (10, 10)}, {"1": (60, 40), "2": (90, 30)}])
    monkeypatch.setattr(
        "atom_kernels.host_threads.delays._read",
        lambda: {thread: (ran * 1_000_000, waited * 1_000_000) for thread, (ran, waited) in next(readings).items()},
    )
    delays = ThreadDelays()
    assert delays.share() is None
    assert delays.share() == 50 / 120
    assert delays.share() == 20 / 100


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
