"""What is kept for older versions of vLLM goes when they go."""

from __future__ import annotations

import importlib
from operator import attrgetter

import pytest

from atom_vllm import compat
from stub_vllm import stub_vllm


@pytest.mark.parametrize("where", compat.SHIMS)
def test_a_shim_is_there_and_still_needed(where: str) -> None:
    module, _, name = where.partition(":")
    with stub_vllm():
        assert callable(attrgetter(name)(importlib.import_module(module)))
    needed_until = compat.SHIMS[where]
    assert needed_until > compat.OLDEST, f"{where} is not needed from vLLM {needed_until} on: remove it"


@pytest.mark.parametrize(
    ("version", "supported"), [("0.25.9", False), ("0.26", True), ("0.32.1+cpu", True), ("0.33.0.dev1", False)]
)
def test_the_range_has_its_ends(version: str, supported: bool) -> None:
    assert (compat.why_not_supported(compat.Version(version)) is None) is supported


def test_a_missing_vllm_is_said_to_be_missing() -> None:
    assert compat.why_not_supported(None) == "no distribution of vLLM is installed"
