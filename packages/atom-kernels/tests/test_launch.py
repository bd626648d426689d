"""Launches go through one door, where a thread may ask for something else to be done with its own."""

from __future__ import annotations

import threading

import pytest

from atom_kernels.triton.launch import launch, launches_go_to


class Kernel:
    """Notes what it is run with."""

    def __init__(self) -> None:
        self.runs: list[tuple] = []

    def run(self, *arguments, grid, warmup, **options) -> None:
        self.runs.append((arguments, grid, warmup, options))


def test_a_launch_runs_the_kernel_once_over_its_grid():
    kernel = Kernel()
    launch(kernel, (3, 4), "x", 5, BLOCK=16, num_warps=2)
    assert kernel.runs == [(("x", 5), (3, 4), False, {"BLOCK": 16, "num_warps": 2})]


def test_what_is_asked_for_instead_gets_all_of_a_launch_and_nothing_runs():
    kernel, taken = Kernel(), []
    with launches_go_to(lambda *given, **options: taken.append((given, options))):
        launch(kernel, (3,), "x", BLOCK=16)
    assert taken == [((kernel, (3,), "x"), {"BLOCK": 16})]
    assert kernel.runs == []


def test_launches_of_other_threads_run():
    kernel, taken = Kernel(), []
    with launches_go_to(lambda *given: taken.append(given)):
        other = threading.Thread(target=launch, args=(kernel, (1,)))
        other.start()
        other.join()
    assert (len(kernel.runs), taken) == (1, [])


def test_the_inner_of_two_wishes_holds_and_both_end_with_an_exception():
    kernel, outer, inner = Kernel(), [], []

    def fail_inside() -> None:
        with launches_go_to(lambda *given: inner.append(given)):
            launch(kernel, (1,))
            raise KeyError

    with launches_go_to(lambda *given: outer.append(given)):
        with pytest.raises(KeyError):
            fail_inside()
        launch(kernel, (2,))
    launch(kernel, (3,))
    assert (inner, outer) == ([(kernel, (1,))], [(kernel, (2,))])
    assert [run[1] for run in kernel.runs] == [(3,)]
