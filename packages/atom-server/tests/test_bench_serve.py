"""`atom bench serve` against the real server."""

from __future__ import annotations

import json
import statistics

import pytest

from atom_server import ServerOptions
from atom_server.bench.client import Outcome
from atom_server.bench.metrics import percentile, summarize
from atom_server.bench.workload import Workload
from atom_server.cli.main import main


def bench(server, tmp_path, *flags):
    common = f"--base-url {server.url} --num-prompts 6 --random-input-len 20 --random-output-len 5 --ignore-eos"
    saved = ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"]
    code = main(["bench", "serve", *common.split(), *saved, *flags])
    return code, json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize("backend", ["vllm", "openai-chat"])
def test_a_run_counts_every_token_and_times_every_stream(server, tmp_path, capsys, backend):
    code, result = bench(server, tmp_path, "--backend", backend, "--max-concurrency", "3")
    assert code == 0
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 30)
    assert result["model_id"] == "tiny"
    if backend == "vllm":
        assert result["total_input_tokens"] == 120
    assert 0 < result["median_ttft_ms"] < result["median_e2el_ms"] < 1e3 * result["duration"]
    assert result["output_throughput"] == pytest.approx(30 / result["duration"])
    shown = capsys.readouterr().out
    for title in ("time to first token", "time per output token", "inter-token latency"):
        assert title in shown
    server.wait_until_idle()


def test_requests_come_at_a_rate(server, tmp_path):
    _, result = bench(server, tmp_path, "--request-rate", "50", "--burstiness", "100")
    assert result["duration"] > 4 / 50
    assert result["request_rate"] == 50


def test_failures_are_counted_and_told(server, tmp_path, capsys):
    code = main(["bench", "serve", "--base-url", server.url, "--num-prompts", "2", "--random-input-len", "600"])
    assert code == 1
    assert "400" in capsys.readouterr().err
    code, result = bench(server, tmp_path, "--model", "tiny", "--percentile-metrics", "ttft,e2el")
    assert (code, result["errors"]) == (0, [])


def test_a_key_is_sent(make_front, tmp_path):
    with make_front(ServerOptions(api_key="secret", served_model_name="tiny")) as server:
        assert bench(server, tmp_path, "--api-key", "secret")[1]["completed"] == 6


def test_a_server_that_is_not_there_is_told_in_one_line(capsys):
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_prompts_and_arrivals_repeat_with_their_seed():
    workload = Workload(200, 10, 8, range_ratio=0.5, prefix_len=3, request_rate=10, vocab_size=50)
    bodies = workload.bodies("m")
    assert bodies == workload.bodies("m")
    prompts = [body["prompt"] for body in bodies]
    assert len({tuple(prompt[:3]) for prompt in prompts}) == 1
    assert {len(prompt) for prompt in prompts} == set(range(8, 14))
    assert {body["max_tokens"] for body in bodies} == set(range(4, 9))
    delays = list(workload.delays())
    assert delays == list(workload.delays())
    assert statistics.fmean(delays) == pytest.approx(0.1, rel=0.3)


def dataset(folder, name, text):
    path = folder / "data.json"
    path.write_text(text)
    return ["--dataset-name", name, "--dataset-path", str(path)]


def conversation(*texts):
    return {"conversations": [{"from": "human", "value": text} for text in texts]}


def test_conversations_ask_for_as_many_tokens_as_their_answers_have(server, tmp_path):
    talks = [conversation("What is it?", "It is this one."), conversation("alone"), conversation("?", "too short")]
    flags = dataset(tmp_path, "sharegpt", json.dumps(talks))
    _, result = bench(server, tmp_path, *flags)
    count = server.post("/tokenize", prompt="It is this one.").json()["count"]
    assert (result["completed"], result["total_output_tokens"]) == (6, 6 * count)
    _, result = bench(server, tmp_path, *flags, "--sharegpt-output-len", "3", "--backend", "openai-chat")
    assert result["total_output_tokens"] == 18


def test_lines_of_prompts_are_sent_as_they_are(server, tmp_path):
    lines = [{"prompt": "one", "output_tokens": 2}, {"prompt": "one", "output_tokens": 2}]
    flags = dataset(tmp_path, "custom", "\n".join(map(json.dumps, lines)))
    _, result = bench(server, tmp_path, *flags, "--custom-output-len", "-1")
    assert result["total_output_tokens"] == 12
    assert result["total_input_tokens"] == 6 * server.post("/tokenize", prompt="one").json()["count"]
    assert bench(server, tmp_path, *flags, "--custom-output-len", "4")[1]["total_output_tokens"] == 24


@pytest.mark.parametrize(("name", "text"), [("sharegpt", "[]"), ("sharegpt", "[1]"), ("custom", "{"), ("custom", "{}")])
def test_a_file_that_is_no_dataset_is_told(server, tmp_path, capsys, name, text):
    assert main(["bench", "serve", "--base-url", server.url, *dataset(tmp_path, name, text)]) == 1
    assert "data.json" in capsys.readouterr().err


def test_metrics_follow_their_definitions():
    first = Outcome(ttft=0.1, latency=0.5, gaps=[0.1, 0.3], num_input_tokens=7, num_output_tokens=3)
    result = summarize([first, Outcome(error="lost")], seconds=2.0, percentiles=[50])
    assert (result["completed"], result["failed"]) == (1, 1)
    assert result["total_token_throughput"] == 5.0
    assert result["mean_tpot_ms"] == pytest.approx(200)
    assert result["p50_itl_ms"] == pytest.approx(200)
    assert percentile([1, 2, 3, 4], 25) == 1.75
