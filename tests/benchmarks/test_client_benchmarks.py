"""The benchmarks of our client: what they send, and what they make of what clients say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from atom_server.cli.main import build_parser
from benchmarks import clients, paced_server
from benchmarks.__main__ import main
from benchmarks.tables import clients_table


def test_ratios_are_of_the_medians_and_turn_by_turn():
    turns = [{"atom": {"x": ours}, "vllm": {"x": theirs}} for ours, theirs in ((1.0, 2.0), (3.0, 2.0), (2.0, 4.0))]
    found = clients.compared("x", turns)
    assert found["clients"] == {"atom": 2.0, "vllm": 2.0}
    assert found["ratio"] == {"of_medians": 1.0, "lowest_turn": 0.5, "highest_turn": 1.5}
    document = {
        "results": [{"at_a_time": 8} | found],
        "machine": {"device": "GPU", "num_cores": 2} | dict.fromkeys(["commit", "date"], ""),
    }
    assert "1.000 (0.500 - 1.500)" in clients_table(document)


def test_both_clients_get_the_same_prompts_and_lengths(tmp_path: Path):
    prompts = clients.write_prompts(tmp_path / "p.jsonl", 3, 5)
    lines = [json.loads(line)["prompt"].split() for line in prompts.read_text().splitlines()]
    assert [line[0] for line in lines] == ["0", "1", "2"]
    assert {len(line) for line in lines} == {6}
    options = argparse.Namespace(prompts=3, tokens_out=4, vllm="run vllm")
    ours, theirs = clients.client_commands(9, tmp_path, prompts, at_a_time=2, options=options).values()
    parsed = build_parser().parse_args(ours[3:])
    assert (parsed.num_prompts, parsed.max_concurrency, parsed.custom_output_len) == (3, 2, 4)
    assert theirs[:2] == ["run", "vllm"]
    shared = ours[ours.index("--base-url") :]
    assert theirs[4 : 4 + len(shared)] == shared


def test_lateness_is_told_in_milliseconds():
    assert paced_server.late_ms([0.001] * 99 + [0.5])["median"] == pytest.approx(1.0)
    assert paced_server.late_ms([0.001]) == {"median": 0.0, "p99": 0.0}


@pytest.mark.slow  # starts a server and a client
def test_a_client_finds_the_pace_that_a_server_keeps(tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--streams 4 --events-per-second 80 --seconds 1 --turns 1 --output {output}"
    assert main(["pace", *flags.split()]) == 0
    [result] = json.loads(output.read_text())["results"]
    assert result["asked"]["tpot_ms"] == 50.0
    assert 40 < result["found"]["median_tpot_ms"] < 100
