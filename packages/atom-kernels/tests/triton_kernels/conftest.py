"""Tests of this folder run on a GPU, or with TRITON_INTERPRET=1; elsewhere they are not collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from triton_interpreter import what_to_ignore

collect_ignore_glob = what_to_ignore()


@pytest.fixture(autouse=True)
def fresh_memory_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel reads before it is written is infinite, so that a test always fails, and not now and
    then.
    """

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(*arguments: Any, **options: Any) -> torch.Tensor:
            memory = allocate(*arguments, **options)
            wide = memory.is_floating_point() and memory.dtype.itemsize > 1
            return memory.fill_(float("inf")) if wide else memory

        return run

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
