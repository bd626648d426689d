"""Launches go through one door, where a thread may ask for something else to be done with its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from atom_kernels.triton.launch import QuickLaunch, launch, launches_go_to


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


class Compiled:
    """What Triton's kernels do: one compilation is found at a launch, and may be launched by itself."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments: self.launched.append((grid, arguments))


class Finding:
    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []
        self.compiled = Compiled()

    def run(self, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> Compiled:
        self.found.append((grid, arguments, constants))
        return self.compiled


def test_a_quick_launch_finds_a_compilation_once_for_arguments_that_are_alike():
    kernel, words = Finding(), torch.zeros(64, dtype=torch.int32)
    quick = QuickLaunch(kernel, BLOCK=256, GROUPS=2)
    quick((3, 1, 1), words, 7)
    assert kernel.found == [((3, 1, 1), (words, 7), {"BLOCK": 256, "GROUPS": 2})]
    quick((4, 1, 1), words[4:], 7)
    assert len(kernel.found) == 1
    [(grid, (tensor, number, *constants))] = kernel.compiled.launched
    assert (grid, tensor.data_ptr(), number, constants) == ((4, 1, 1), words[4:].data_ptr(), 7, [256, 2])


@pytest.mark.parametrize("other", ["another alignment", "another dtype", "another number"])
def test_a_quick_launch_asks_again_where_triton_might_compile_anew(other):
    kernel, words = Finding(), torch.zeros(64, dtype=torch.int32)
    quick = QuickLaunch(kernel)
    quick((1, 1, 1), words, 8)
    tensor = {"another alignment": words[1:], "another dtype": words.float()}.get(other, words)
    quick((1, 1, 1), tensor, 16 if other == "another number" else 8)
    assert (len(kernel.found), kernel.compiled.launched) == (2, [])


def test_a_quick_launch_goes_where_launches_go():
    kernel, taken = Finding(), []
    with launches_go_to(lambda *given, **options: taken.append((given, options))):
        QuickLaunch(kernel, BLOCK=2)((1, 1, 1), 5)
    assert taken == [((kernel, (1, 1, 1), 5), {"BLOCK": 2})]
    assert kernel.found == []
