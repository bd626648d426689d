"""The benchmarks run from end to end, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.block_models import BLOCKS
from benchmarks.blocks import open_sides

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_our_engine_and_transformers_are_measured_on_one_model(tiny_llama: Path, tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--vs transformers --model {tiny_llama} --dtype float32 --threads 1 --context 24 --prefill 32"
    flags += f" --batch-sizes 1 3 --turns 2 --steps 2 --output {output}"
    flags += " --probe-megabytes 8 --probe-matrix 128"
    assert main(["offline", *flags.split()]) == 0

    document = json.loads(output.read_text())
    assert document["greedy_agreement"] == {"tokens_compared": 16, "equal_from_the_start": 16}
    names = [result["scenario"] for result in document["results"]]
    assert names == ["decode, batch 1, context 24", "decode, batch 3, context 24", "prefill 32"]
    for result in document["results"]:
        assert result["engines"]["atom"]["num_steps"] == 6
        assert result["engines"]["transformers"]["num_steps"] == 4
        assert result["times_faster_than"]["transformers"]["median"] > 0


def test_the_overhead_of_the_engine_is_measured(tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--batch-sizes 1 2 --context 20 --vocab-size 64 --threads 1 --turns 1 --steps 3 --output {output}"
    assert main(["overhead", *flags.split()]) == 0

    results = json.loads(output.read_text())["results"]
    assert [(result["batch_size"], result["sampling"]) for result in results] == [
        (1, "greedy"),
        (1, "top-p 0.9"),
        (2, "greedy"),
        (2, "top-p 0.9"),
    ]
    assert all(result["num_steps"] == 6 for result in results)


@pytest.mark.slow  # starts a process with torch for each row
def test_what_a_process_adds_to_a_step_is_measured(tmp_path: Path):
    output = tmp_path / "result.json"
    flags = "--processes --batch-sizes 1 --context 20 --vocab-size 64 --threads 1 --turns 1 --steps 3"
    assert main(["overhead", *flags.split(), "--output", str(output)]) == 0
    for result in json.loads(output.read_text())["results"]:
        added = result["process"]["median_ms"] - result["median_ms"]
        assert result["process"]["added_ms"] == pytest.approx(added, abs=0.002)


@pytest.mark.slow  # starts three processes with torch
def test_ranks_are_timed_beside_one_process(tiny_llama: Path, tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--model {tiny_llama} --dtype float32 --batch-sizes 2 --context 20 --prefill 24 --turns 1 --steps 2"
    assert main(["ranks", "-tp", "2", *flags.split(), "--output", str(output)]) == 0

    document = json.loads(output.read_text())
    assert document["settings"]["threads"] == document["settings"]["tensor_parallel_size"] == 2
    results = document["results"]
    assert [result["scenario"] for result in results] == ["decode, batch 2, context 20", "prefill 24"]
    for result in results:
        one, ranks = (result["sides"][name]["median_ms"] for name in ("one", "ranks"))
        assert result["speed"]["median"] == pytest.approx(one / ranks, abs=0.01)


def test_more_ranks_than_cores_are_not_timed(capsys: pytest.CaptureFixture[str]):
    assert main(["ranks", "-tp", "4096"]) == 1
    assert "4096 ranks compute on as many cores" in capsys.readouterr().err


@pytest.mark.slow
def test_models_of_one_building_block_are_measured(tmp_path: Path):
    output = tmp_path / "result.json"
    flags = "--hidden 64 --layers 2 --experts 4 --dtype float32 --threads 1 --context 16 --batch-sizes 2 --prefill 24"
    blocks = ["--blocks", "mixture of experts"]
    assert main(["blocks", *blocks, *flags.split(), "--turns", "2", "--steps", "2", "--output", str(output)]) == 0

    document = json.loads(output.read_text())
    results = document["results"]
    assert [(result["block"], result["scenario"]) for result in results] == [
        ("mixture of experts", "decode, batch 2, context 16"),
        ("mixture of experts", "prefill 24"),
    ]
    ratios = [result["times_faster_than"]["transformers"]["median"] for result in results]
    assert document["lowest_ratio"] == min(ratios) > 0


@pytest.mark.parametrize("block", ["mixture of experts", "fallback, Qwen3"])
def test_threads_of_all_sides_of_a_block_wait_alike(block: str, monkeypatch: pytest.MonkeyPatch):
    given: list[dict[str, str]] = []
    monkeypatch.setattr("benchmarks.blocks.SideProcess", lambda name, environment, **_: given.append(environment))
    sides = open_sides(block, {})
    assert len(given) == len(sides) >= 2
    assert given == [{"GOMP_SPINCOUNT": "300000"}] * len(sides)


@pytest.mark.slow
def test_layers_of_transformers_are_measured_beside_our_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "result.json"
    flags = "--hidden 256 --layers 4 --experts 4 --dtype float32 --threads 1 --context 16 --batch-sizes 2 --prefill 24"
    blocks = ["--blocks", *(name for name in BLOCKS if "nets" in name or "Qwen3" in name or "OLMo" in name)]
    assert main(["blocks", *blocks, *flags.split(), "--turns", "1", "--steps", "2", "--output", str(output)]) == 0

    sides = {result["block"]: [*result["engines"]] for result in json.loads(output.read_text())["results"]}
    assert sides.pop("fallback, Qwen3") == ["atom", "transformers", "our own file"]
    assert set(map(tuple, sides.values())) == {("atom", "transformers")}
    assert "| our own file | ATOM is" in capsys.readouterr().out


def test_streams_over_http_are_timed_beside_the_inline_engine(tiny_llama: Path, tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--model {tiny_llama} --dtype float32 --batch-sizes 3 --context 4 --turns 1 --steps 4 --output {output}"
    assert main(["http", *flags.split()]) == 0

    [result] = json.loads(output.read_text())["results"]
    assert (result["endpoint"], result["batch_size"]) == ("chat", 3)
    assert result["sides"]["inline"]["num_steps"] == 8
    assert result["sides"]["http"]["num_steps"] == 4
    assert result["overhead"]["median"] >= -1  # rounded, and on a busy machine the inline engine may be the slower


@pytest.mark.slow
def test_engines_behind_one_front_are_timed_beside_servers_apart(tiny_llama: Path, tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--model {tiny_llama} --dtype float32 --streams 4 --context 4 --tokens 8 --turns 1 --loads 2"
    assert main(["replicas", *flags.split(), "--output", str(output)]) == 0

    [result] = json.loads(output.read_text())["results"]
    assert result["streams"] == 4
    assert result["sides"]["apart"]["num_steps"] == 4
    assert result["sides"]["together"]["num_steps"] == 2


@pytest.mark.slow
def test_over_a_link_streams_end_whichever_server_is_killed(tiny_llama: Path, tmp_path: Path):
    """In a process of its own, which enters a network namespace."""
    output = tmp_path / "result.json"
    flags = f"--model {tiny_llama} --dtype float32 --streams 4 --context 32 --tokens 16 --turns 1 --output {output}"
    command = [sys.executable, "-m", "benchmarks", "apart", *flags.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if run.returncode == 2 and run.stderr.startswith("no link between"):
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr[-4000:]

    document = json.loads(output.read_text())
    assert [result["same_text"] for result in document["results"]] == [True]
    prefill, decode = document["deaths"]
    assert (prefill["killed"], prefill["answered"], prefill["same_text"]) == ("prefill", 4, True)
    assert (decode["killed"], decode["same_text"]) == ("decode", True)
