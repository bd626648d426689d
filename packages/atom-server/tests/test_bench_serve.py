"""`atom bench serve` against the real server."""

from __future__ import annotations

import json

import pytest

from atom_server import ServerOptions
from atom_server.bench.backends import Ask
from atom_server.bench.metrics import num_good, percentile, summarize
from atom_server.bench.outcome import Outcome
from atom_server.bench.serve import live_text
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


def test_arrivals_repeat_with_their_seed_and_keep_their_rate():
    ask = Ask("x", 1)
    moments = list(Workload([ask] * 400, ask, request_rate=10, burstiness=2).moments())
    assert moments == list(Workload([ask] * 400, ask, request_rate=10, burstiness=2).moments())
    assert moments[0] == 0
    assert moments[-1] / 399 == pytest.approx(0.1, rel=0.2)
    assert set(Workload([ask] * 3, ask).moments()) == {0.0}


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
    assert (num_good([first], {"ttft": 100, "tpot": 200}), num_good([first], {"e2el": 499})) == (1, 0)
    result = summarize([first, Outcome(error="lost")], seconds=2.0, percentiles=[50])
    assert (result["completed"], result["failed"]) == (1, 1)
    assert result["total_token_throughput"] == 5.0
    assert result["mean_tpot_ms"] == pytest.approx(200)
    assert result["p50_itl_ms"] == pytest.approx(200)
    assert percentile([1, 2, 3, 4], 25) == 1.75


# The keys of a result of vLLM 0.11's serving benchmark with --save-detailed, but for the kinds of latencies.
KEYS_OF_VLLM = """
date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency
duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput
total_token_throughput input_lens output_lens ttfts itls generated_texts errors max_output_tokens_per_s
max_concurrent_requests
"""


def test_a_result_has_the_keys_of_vllms_benchmark(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SAVE_TO_PYTORCH_BENCHMARK_FORMAT", "1")
    limits = ["--goodput", "ttft:100000", "e2el:200000"]
    _, result = bench(server, tmp_path, "--save-detailed", "--metadata", "gpu=none", *limits)
    latencies = {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl")}
    assert set(KEYS_OF_VLLM.split()) | latencies <= result.keys()
    assert result["gpu"] == "none"
    assert result["request_goodput"] == result["request_throughput"]
    assert result["output_lens"] == [5] * 6
    # A piece of text may be of several tokens, and all of a short answer may come at once.
    assert [len(gaps) <= 4 for gaps in result["itls"]] == [True] * 6
    assert sum(map(sum, result["itls"])) > 0
    records = json.loads((tmp_path / "result.pytorch.json").read_text())
    [median] = [record for record in records if record["metric"]["name"] == "median_ttft_ms"]
    assert median["metric"]["benchmark_values"] == [result["median_ttft_ms"]]
    assert median["model"] == {"name": "tiny"}
    assert "ttfts" not in median["metric"]["extra_info"]


def test_a_good_request_keeps_every_limit(server, tmp_path):
    _, result = bench(server, tmp_path, "--goodput", "ttft:100000", "e2el:0.001")
    assert result["request_goodput"] == 0


def test_a_tokenizer_of_ones_own_makes_texts_of_as_many_tokens(server, tmp_path, tiny_llama):
    _, result = bench(server, tmp_path, "--tokenizer", str(tiny_llama), "--save-detailed")
    counts = result["input_lens"]
    assert result["tokenizer_id"] == str(tiny_llama)
    assert all(abs(count - 20) <= 2 for count in counts)


def test_a_chat_template_is_put_around_prompts(server, tmp_path):
    plain = bench(server, tmp_path)[1]["total_input_tokens"]
    _, result = bench(server, tmp_path, "--use-chat-template")
    assert (result["failed"], result["total_input_tokens"] > plain) == (0, True)


def test_a_report_is_one_page_with_figures_and_charts(server, tmp_path):
    pytest.importorskip("matplotlib")
    bench(server, tmp_path, "--report", str(tmp_path / "run.html"))
    page = (tmp_path / "run.html").read_text()
    assert "<svg" in page
    assert "time to first token" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--goodput", "itl:3"], "metrics are ttft, tpot, e2el"),
        (["--metadata", "x"], "is not KEY=VALUE"),
        (["--backend", "triton"], "invalid choice"),
        (["--random-prefix-len", "-1"], "-1 is not at least 0"),
        (["--logprobs", "-1"], "-1 is not at least 0"),
    ],
)
def test_flags_that_mean_nothing_are_refused(flags, reason, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "serve", *flags])
    assert reason in capsys.readouterr().err


def test_the_live_line_tells_rates_and_failures():
    done = Outcome(ttft=0.05, latency=0.5, num_output_tokens=10)
    assert live_text([done, Outcome(error="lost")], 2.0) == "5 output tokens/s, first token 50 ms, 1 failed"
    assert live_text([], 2.0) == ""
