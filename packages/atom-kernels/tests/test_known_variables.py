"""What is said of environment variables that look like ours and that nobody reads."""

from __future__ import annotations

import pytest

from atom_kernels.known_variables import OF_NO_EFFECT, READ, left_aside, warnings


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ATOM_DISABLE_NATIV", "ATOM_DISABLE_NATIVE"),
        ("ATOM_LOGLEVEL", "ATOM_LOG_LEVEL"),
        ("ATOM_DEBG", "ATOM_DEBUG"),
        ("ATOM_VLLM_COMPIL", "ATOM_VLLM_COMPILE"),
        ("ATOM_ENABLE_QK_NORM_ROPE_CACHE_FUSION", "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(name: str, nearest: str):
    assert warnings([name]) == [f"ATOM does not read the environment variable {name!r}: did you mean {nearest}?"]


def test_a_name_like_none_of_ours_has_no_nearest():
    assert warnings(["ATOM_QQQQ"]) == ["ATOM does not read the environment variable 'ATOM_QQQQ'"]


def test_names_that_a_package_reads_and_those_of_upstream_are_no_mistakes():
    assert warnings([*READ, *OF_NO_EFFECT]) == []


def test_names_of_upstream_that_do_nothing_are_said_to_in_one_line():
    assert left_aside(["ATOM_DP_RANK", "ATOM_USE_TRITON_GEMM", "ATOM_DEBUG"]) == (
        "of no effect here, though ROCm/ATOM reads them: ATOM_DP_RANK, ATOM_USE_TRITON_GEMM"
    )
    assert left_aside(READ) is None


def test_the_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATOM_DISABLE_NATIV", "1")
    monkeypatch.setenv("ATOM_DP_SIZE", "2")
    assert any("ATOM_DISABLE_NATIV'" in line for line in warnings())
    assert "ATOM_DP_SIZE" in (left_aside() or "")


def test_a_name_can_neither_forge_a_line_nor_fill_the_log():
    assert "\n" not in warnings(["ATOM_X\nERROR all is lost"])[0]
    assert len(warnings(["ATOM_" + "X" * 100_000])[0]) < 200
    lines = warnings([f"ATOM_{number:04}" for number in range(1000)])
    assert len(lines) == 11
    assert lines[-1] == "and 990 more that ATOM does not know"
