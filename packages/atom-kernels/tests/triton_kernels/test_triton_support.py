"""Launches that start before the kernel in front of them has ended are for GPUs that know them."""

from __future__ import annotations

import dataclasses

import pytest

from atom_kernels.platform import detect_platform
from atom_kernels.triton import support as triton_support


@pytest.mark.parametrize(
    ("vendor", "arch", "expected"),
    [("nvidia", "sm_90", True), ("nvidia", "sm_120", True), ("nvidia", "sm_89", False), ("amd", "gfx942", False)],
)
def test_dependent_launch_is_for_nvidia_from_hopper_on(monkeypatch, vendor, arch, expected):
    platform = dataclasses.replace(detect_platform(), vendor=vendor, arch=arch)
    monkeypatch.setattr(triton_support, "detect_platform", lambda: platform)
    triton_support.has_dependent_launch.cache_clear()
    launch = triton_support.dependent_launch()
    triton_support.has_dependent_launch.cache_clear()
    assert launch == ({"DEPENDENT": True, "launch_pdl": True} if expected else {"DEPENDENT": False})
