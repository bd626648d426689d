"""`atom bench sweep`, `throughput` and `latency`."""

from __future__ import annotations

import json

import pytest

from atom_server.bench.knee import knee
from atom_server.cli.main import main

TINY = "--dtype float32 --num-threads 1 --num-kv-blocks 64 --max-model-len 64"


def test_the_knee_is_where_throughput_ends_to_grow_faster_than_latency():
    assert knee([(10, 100), (11, 190), (13, 350), (30, 400), (90, 420)]) == 2
    assert knee([(10, 100)]) == 0


def test_a_sweep_measures_each_load_and_marks_the_knee(server, tmp_path, capsys):
    flags = "--concurrency 4 1 --prompts-per-stream 2 --random-input-len 8 --random-output-len 3 --ignore-eos"
    path, plot = tmp_path / "sweep.json", tmp_path / "sweep.svg"
    files = ["--json", str(path), "--plot", str(plot)]
    assert main(["bench", "sweep", "--base-url", server.url, *flags.split(), *files]) == 0
    assert plot.exists()
    document = json.loads(path.read_text())
    assert [(each["max_concurrency"], each["completed"]) for each in document["results"]] == [(1, 2), (4, 8)]
    assert document["knee"] in (1, 4)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("at once")
    assert [line.endswith("knee") for line in lines[:2]].count(True) == 1


def test_throughput_counts_the_tokens_of_prompts_and_answers(tiny_llama, tmp_path, capsys):
    flags = f"--num-prompts 3 --input-len 8 --output-len 4 {TINY}"
    path = tmp_path / "throughput.json"
    command = ["bench", "throughput", "--model", str(tiny_llama), *flags.split(), "--output-json", str(path)]
    assert main(command) == 0
    result = json.loads(path.read_text())
    assert (result["num_requests"], result["total_num_tokens"]) == (3, 3 * 12)
    assert result["tokens_per_second"] == pytest.approx(36 / result["elapsed_time"])
    assert "output tokens/s" in capsys.readouterr().out


def test_latency_times_the_batch_again_and_again(tiny_llama, tmp_path):
    flags = f"--batch-size 2 --input-len 8 --output-len 4 --num-iters-warmup 1 --num-iters 3 {TINY}"
    path = tmp_path / "latency.json"
    assert main(["bench", "latency", "--model", str(tiny_llama), *flags.split(), "--output-json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert len(result["latencies"]) == 3
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 3)
    assert set(result["percentiles"]) == {"10", "25", "50", "75", "90", "99"}


def test_a_batch_that_the_engine_cannot_take_is_refused(tiny_llama, capsys):
    flags = f"--num-prompts 1 --input-len 60 --output-len 8 {TINY}"
    assert main(["bench", "throughput", "--model", str(tiny_llama), *flags.split()]) == 1
    assert "are more than the 64 tokens that the engine takes" in capsys.readouterr().err
