"""``python -m atom_kernels``: explain, check and bench say what they should and teach when asked wrongly."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from atom_kernels.cli import check
from atom_kernels.cli.main import main
from atom_kernels.norm import LAYER_NORM, LayerNormProblem
from atom_kernels.platform import detect_platform


def test_explain_names_every_row_and_every_reason(capsys):
    assert main(["explain", "rms_norm", "linear"]) == 0
    out = capsys.readouterr().out
    assert detect_platform().bf16_reason in out
    assert "rms_norm:" in out
    assert "rows 1.." in out
    assert "no aiter:" in out or "aiter" in detect_platform().backends
    assert "MB" in out


@pytest.mark.parametrize("release", ["git", "pypi"])
def test_explain_tells_of_an_amd_gpu_that_is_not_here(release, capsys):
    assert main(["explain", "linear", "gated_activation", "--platform", "gfx950", "--aiter", release]) == 0
    out = capsys.readouterr().out
    assert out.startswith("AMD Instinct MI355X (amd, gfx950), which need not be this machine")
    assert "aiter   AITER tuned GEMM" in out
    assert ("has no swiglu_and_mul" in out) == (release == "pypi")
    assert detect_platform().arch != "gfx950"


def test_check_of_one_backend_says_which_machine_it_ran_on(capsys):
    assert main(["check", "layer_norm", "linear", "--backend", "torch"]) == 0
    out = capsys.readouterr().out
    assert detect_platform().name in out
    assert "of allowed" in out
    assert "native" not in "".join(line for line in out.splitlines() if line.startswith("linear"))


def test_a_backend_that_cannot_run_here_is_a_reason_and_no_success(capsys):
    if "aiter" in detect_platform().backends:
        pytest.skip("AITER runs here")
    assert main(["check", "--backend", "aiter"]) == 2
    assert main(["bench", "--backend", "aiter"]) == 2
    assert "AITER needs ROCm" in capsys.readouterr().err


def test_a_check_of_nothing_is_no_success(capsys):
    assert main(["check", "layer_norm", "--backend", "onednn"]) == 1
    assert "nothing was checked" in capsys.readouterr().out


def test_check_passes_here(capsys):
    assert main(["check", "layer_norm", "embedding"]) == 0
    assert "agree with their references" in capsys.readouterr().out


def make_wrong_op(result):
    """Layer norm with a torch backend that gives `result` instead."""

    def bind(problem, weights):
        def run(x):
            if isinstance(result, Exception):
                raise result
            return x * result

        return run

    wrong = replace(LAYER_NORM.backends[-1], bind=bind)
    problems = (LayerNormProblem(8, torch.float32),)
    return replace(LAYER_NORM, backends=(wrong,), parity_problems=lambda: problems)


@pytest.mark.parametrize(("result", "words"), [(5.0, "off by"), (RuntimeError("boom"), "RuntimeError: boom")])
def test_check_fails_on_a_wrong_backend_and_says_where(result, words, capsys):
    assert check.run([make_wrong_op(result)], detect_platform()) == 1
    out = capsys.readouterr().out
    assert "hidden_size=8" in out
    assert words in out


def test_bench_of_one_backend_measures_no_other(capsys):
    command = ["bench", "layer_norm", "embedding", "--rows", "1", "--seconds", "0.001", "--backend", "torch"]
    assert main(command) == 0
    assert "torch layer_norm" in capsys.readouterr().out


def test_bench_prints_time_roofline_and_ratio(capsys):
    assert main(["bench", "embedding", "--rows", "1", "--seconds", "0.001"]) == 0
    out = capsys.readouterr().out
    assert "256 MiB" in out
    assert "TFLOP/s" in out
    assert "rows=1" in out
    assert "rows=16" not in out


def test_an_unknown_operator_is_answered_with_those_there_are(capsys):
    assert main(["check", "rmsnorm"]) == 2
    assert "rms_norm" in capsys.readouterr().err


def test_help_teaches_by_example(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    assert "python -m atom_kernels check" in capsys.readouterr().out


def test_protocols_import_without_torch():
    code = "import sys, atom_kernels.protocols; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
