"""The GPU benchmark runs from end to end, on a CPU and a tiny model: every figure is saved, failures too."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atom_kernels.settings import native_compiler
from benchmarks.__main__ import main
from benchmarks.gpu import ceilings, command, models, processes, turns
from benchmarks.gpu.served.table import COLUMNS, served_table

TINY = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 10016,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 1024, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SIZES = "--repeats 1 --batch-sizes 2 --contexts 16 --prompts 40 --long-batch-sizes 2 --long-contexts 300 --in-flight 4"


@pytest.fixture
def hasty_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold caches have the C kernels compiled, which takes seconds less where they are not optimized."""
    compiler = shutil.which(native_compiler())
    if compiler is not None:
        hasty = tmp_path / "hasty-cc"
        hasty.write_text(f'#!/bin/sh\nexec {shlex.quote(compiler)} "$@" -O0\n')
        hasty.chmod(0o700)
        monkeypatch.setenv("CC", str(hasty))


def options_of(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.usefixtures("hasty_compiler")
def test_all_sessions_of_ours_are_measured_and_a_peer_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(models.MODELS, "tiny", TINY)
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda: ceilings.Ceilings("A Fine GPU", 2e12, 500e12))
    output = tmp_path / "gpu.json"
    flags = f"gpu decode closed long idle --cold --vs vllm --once --model tiny {SIZES} --max-model-len 768"
    flags += " --variant batch_invariant=true"
    assert main([*flags.split(), "--commit", "abc", "--output", str(output)]) == 0
    document = json.loads(output.read_text())
    figures = {result["figure"]: result for result in document["results"]}
    decode = "decode step, batch 2, context 16"
    assert set(figures) == {
        "process start to first token, caches cold",
        "process start to first token, caches warm",
        decode,
        "decode step, batch 2, context 300",
        "closed loop, 4 requests at a time",
        f"{decode}, batch_invariant=true",
        "decode step, batch 2, context 300, batch_invariant=true",
        "closed loop, 4 requests at a time, batch_invariant=true",
    }
    assert all(result["engines"]["atom"]["median"] > 0 for result in figures.values())
    assert len(figures["decode step, batch 2, context 300"]["engines"]["atom"]["turns"][0]) == 4
    assert figures[decode]["floor"] > 0
    failures = [(failure["engine"], failure["failure"]) for failure in document["failures"]]
    # There is no GPU whose kernels could be seen, and no vLLM here.
    assert [engine for engine, _ in failures] == ["atom", "atom", "vllm", "vllm"]
    assert all(failure.startswith("idle: ") for _, failure in failures[:2])
    assert "No module named 'vllm'" in failures[2][1]
    printed = capsys.readouterr().out
    assert "vllm failed on tiny: ModuleNotFoundError" in printed
    assert "| as it comes" in printed


def test_servers_are_not_measured_beside_other_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "decode", "served"]) == 2
    assert "measure it in a call of its own" in capsys.readouterr().err


@pytest.mark.slow
def test_servers_are_measured_with_cold_and_warm_caches_and_a_peer_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(models.MODELS, "tiny", TINY | {"max_position_embeddings": 2048})
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda: ceilings.Ceilings("A Fine GPU", 2e12, 500e12))
    output = tmp_path / "served.json"
    flags = "gpu served --vs vllm --model tiny --max-model-len 2048 --streams 1 --window 1.5 --seconds 100"
    assert main([*flags.split(), "--commit", "abc", "--output", str(output)]) == 0
    document = json.loads(output.read_text())
    assert document["benchmark"] == "gpu-served"
    found = {
        (result["about"]["caches"], result["about"]["workload"], result["about"]["what"]): result
        for result in document["results"]
    }
    workloads = {workload for _, workload, what in found if what != "ready"}
    assert len(workloads) == 3
    for caches in ("cold", "warm"):
        assert found[caches, "start", "ready"]["engines"]["atom"]["median"] > 0
        for workload in workloads:
            values = {what: found[caches, workload, what]["engines"]["atom"]["median"] for what in COLUMNS}
            assert min(values["steady tokens"], values["first tokens"], values["first token, longest"]) > 0
            # A CPU compiles and captures nothing.
            assert (values["late compilations"], values["late captures"]) == (0, 0)
    assert [failure["engine"] for failure in document["failures"]] == ["vllm", "vllm"]
    assert "No module named 'vllm'" in document["failures"][0]["failure"]
    printed = capsys.readouterr().out
    assert "| share of steady" in printed
    assert "Process start to ready, tiny, caches cold: atom" in printed


def test_a_variant_of_an_earlier_run_is_told_with_its_commit() -> None:
    def measured(commit: str, **about: str) -> dict[str, Any]:
        engines = {"atom": {"version": "1", "median": 1.0, "range": [1.0, 1.0]}}
        about = {"what": "first tokens", "caches": "warm", "workload": "short", **about}
        return {"model": "tiny", "figure": "f", "unit": "ms", "commit": commit, "about": about, "engines": engines}

    document: dict[str, Any] = {
        "machine": {"device": "A GPU", "commit": "new", "date": "2026-01-01", "versions": {"torch": "2"}},
        "copy_tb_per_s": 1.0,
        "matmul_tflop_per_s": 1.0,
        "settings": {"dtype": "bfloat16"},
        "results": [measured("new"), measured("old", **{"with": "warmup=none"})],
    }
    assert served_table(document).endswith("Rows with warmup=none are of commit old.")
    document["results"].pop()
    assert "are of commit" not in served_table(document)


def test_results_of_earlier_runs_stay_unless_they_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda: ceilings.Ceilings("A Fine GPU", 2e12, 500e12))
    output = tmp_path / "gpu.json"

    def measure(figures: dict[str, float], commit: str = "first") -> dict[str, float]:
        def turns_of(model: str, options: argparse.Namespace) -> Any:
            for figure, value in figures.items():
                yield {"model": model, "turn": 0, "engine": "atom", "version": "1", "figure": figure, "unit": "ms",
                       "values": [value], "about": {}, "skipped": None}  # fmt: skip
                saved = json.loads(output.read_text()) if output.exists() else {"results": []}
                seen.append(len(saved["results"]))

        monkeypatch.setattr(turns, "take_turns", turns_of)
        assert main(["gpu", "--append", "--commit", commit, "--output", str(output)]) == 0
        results = json.loads(output.read_text())["results"]
        return {result["figure"]: result["engines"]["atom"]["median"] for result in results}

    seen: list[int] = []
    assert measure({"a": 1.0, "b": 2.0}) == {"a": 1.0, "b": 2.0}
    assert seen == [1, 2]  # saved before the next figure is measured
    assert measure({"b": 3.0, "c": 4.0}, "second") == {"a": 1.0, "b": 3.0, "c": 4.0}
    results = json.loads(output.read_text())["results"]
    assert [result["commit"] for result in results] == ["first", "second", "second"]


def test_what_needs_settings_of_its_own_gets_a_process_and_only_in_the_first_turn() -> None:
    variants = ("--variant", "batch_invariant=true", "--variant", "cudagraph_mode=none", "level=2")
    options = options_of("decode", "prefix", "profile", "--cold", "--engine-option", "level=1", *variants)
    sessions = turns.sessions_of("atom", options, is_first=True)
    assert [(session.scenarios, session.caches) for session in sessions] == [
        (["start"], "cold"),
        (["start", "decode", "profile"], "warm"),
        (["prefix"], "as found"),
        (["decode"], "as found"),
        (["decode"], "as found"),
    ]
    assert [session.prefix_caching for session in sessions] == [False, False, True, False, False]
    assert [session.label for session in sessions[3:]] == ["batch_invariant=true", "cudagraph_mode=none level=2"]
    assert sessions[3].engine_options == {"level": 1, "batch_invariant": True}
    assert sessions[4].engine_options == {"level": 2, "cudagraph_mode": "none"}
    peers = turns.sessions_of("vllm", options, is_first=True)
    assert [session.scenarios for session in peers] == [["start"], ["start", "decode", "profile"], ["prefix"]]
    assert all(session.engine_options == {} for session in peers)
    options.peer_option = ["gdn_prefill_backend=triton"]
    asked = turns.sessions_of("vllm", options, is_first=True)
    assert [session.engine_options for session in asked] == [{"gdn_prefill_backend": "triton"}] * 3
    [again] = turns.sessions_of("atom", options, is_first=False)
    assert again.scenarios == ["decode"]


def test_both_engines_are_told_to_hold_whole_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def told_by(given: list[str], *_: Any, **__: Any) -> Any:
        asked.append(json.loads(given[-1]))
        yield from ()

    monkeypatch.setattr(turns, "told_by", told_by)
    options = options_of("decode", "--vs", "vllm", "--once", "-tp", "2", "--enable-expert-parallel")
    assert not list(turns.take_turns("qwen3-30b-a3b", options))
    parallel = [(one["engine"], one["tensor_parallel_size"], one["enable_expert_parallel"]) for one in asked]
    assert parallel == [("atom", 2, True), ("vllm", 2, True)]


def test_a_long_context_is_let_in_by_both_engines() -> None:
    assert command.longest_request(options_of("decode")) == 16384
    assert command.longest_request(options_of("long")) == 32768 + 512


def test_a_process_that_fails_or_hangs_is_ended_with_the_last_of_what_it_wrote(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log.txt"
    script = (
        "import sys; print('{\"a\": 1}', flush=True); print('x' * 999 + '\\nno luck', file=sys.stderr); sys.exit(3)"
    )
    told = list(processes.told_by([sys.executable, "-c", script], {}, seconds=60, log=log))
    assert told[0] == {"a": 1}
    assert told[1]["failure"] == f"status 3: {'x' * processes.LINE_LENGTH}\nno luck"
    assert log.read_text().endswith("no luck\n")
    started = time.perf_counter()
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    [late] = processes.told_by([sys.executable, "-c", script], {}, seconds=1)
    assert "ended after 1 s" in late["failure"]
    assert time.perf_counter() - started < 20


def test_an_engine_ends_with_the_command_that_started_it() -> None:
    script = "import os, time; print('{\"pid\": %d}' % os.getpid(), flush=True); time.sleep(60)"
    told = processes.told_by([sys.executable, "-c", script], {}, seconds=60)
    pid = next(told)["pid"]
    told.close()  # what an exception does, that of SIGTERM among them
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
