"""`/metrics`: names that dashboards know, in a format that Prometheus reads, and numbers that are true."""

from __future__ import annotations

import re
import threading
import time

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from atom_server import ServerOptions, create_app
from atom_server.observe.token_metrics import TokenMetrics
from http_edge import serving

COMMON = {"model_name", "engine"}
LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)*\} [0-9.e+-]+')
NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "request_success_total",
    "admission_rejections_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "event_loop_lag_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_decode_time_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_inference_time_seconds",
    "request_params_max_tokens",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "forced_tokens_total",
    "spec_decode_kept_output_tokens",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "not_finite_logits_total",
    "iteration_tokens_total",
    "num_requests_waiting_by_reason",
    "engine_paused",
    "engine_sleep_state",
    "startup_seconds",
    "late_captures_total",
    "kv_offload_blocks",
    "kv_offload_capacity_blocks",
    "kv_offload_failed_loads_total",
    "kv_offload_loaded_blocks_total",
    "kv_offload_not_saved_blocks_total",
    "kv_offload_saved_blocks_total",
    "kv_transfer_expired_prompts_total",
    "kv_transfer_failed_fetches_total",
    "kv_transfer_fetched_blocks_total",
    "kv_transfer_kept_prompts",
    "kv_transfer_not_kept_prompts_total",
    "kv_transfer_sent_prompts_total",
    "late_compilations_total",
    "expert_moves_total",
    "engine_restarts_total",
    "engine_serving",
]


def read(server):
    answer = httpx.get(server.url + "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


def values(server):
    """The number under each name, with the labels that not all of them have."""
    return {
        " ".join(
            (sample.name.removeprefix("atom:"), *(f"{k}={v}" for k, v in sample.labels.items() if k not in COMMON))
        ): sample.value
        for family in text_string_to_metric_families(read(server))
        for sample in family.samples
    }


def test_every_name_is_there_once_and_every_line_can_be_read(server):
    text = read(server)
    kinds = re.findall(r"^# TYPE atom:(\S+) (\S+)$", text, re.MULTILINE)
    assert sorted(name for name, _ in kinds) == sorted(NAMES)
    histograms = {name for name, kind in kinds if kind == "histogram"}
    assert all((kind == "counter") == (name.endswith("_total") and name not in histograms) for name, kind in kinds)
    for line in text.splitlines():
        assert line.startswith(("# HELP atom:", "# TYPE atom:")) or LINE.fullmatch(line), line


def test_vllms_names_by_a_switch(server):
    with serving(create_app(server.engine, ServerOptions(metrics_prefix="vllm"))) as port:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert "vllm:num_requests_waiting{" in text
    assert "atom:" not in text


def test_what_was_served_is_counted(server):
    before = values(server)
    for _ in range(2):
        asked = {"prompt": [9] * 40, "n": 2, "max_tokens": 8, "ignore_eos": True}
        assert server.post("/v1/completions", **asked).status_code == 200
    server.wait_until_idle()
    after = values(server)

    def grown(name):
        return after[name] - before.get(name, 0)

    assert grown("prompt_tokens_total") == 80
    assert grown("prompt_tokens_cached_total") == 32
    assert grown("generation_tokens_total") == 32
    assert grown("request_success_total finished_reason=length") == 4
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_params_n"):
        assert grown(f"{name}_count") == 2
    assert 2 <= grown("inter_token_latency_seconds_count") <= 28
    assert grown("request_params_n_sum") == 4
    assert grown("request_prompt_tokens_bucket le=50.0") - grown("request_prompt_tokens_bucket le=20.0") == 2
    assert after["num_requests_running"] == after["kv_cache_usage_perc"] == 0
    # Prompts without what was cached, and all sampled tokens but the last ones; a step ahead may compute more.
    assert 80 - 32 + 4 * 7 <= grown("iteration_tokens_total_sum") <= 80 - 32 + 4 * 8 + 16
    assert grown("iteration_tokens_total_bucket le=+Inf") == grown("iteration_tokens_total_count") >= 16


def test_tokens_and_the_seconds_between_them_are_told_as_the_library_tells_its_own():
    engines = [{"model_name": "m", "engine": str(rank)} for rank in range(2)]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tokens = TokenMetrics("atom", engines)
    ours.register(tokens)
    labels = tuple(engines[0])
    counter = Counter("atom:generation_tokens", "Tokens generated.", labels, registry=theirs)
    name, help, bounds = "atom:inter_token_latency_seconds", "Between news of a sample.", (0.001, 0.0025, 0.005)
    bounds += (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
    gaps = Histogram(name, help, labels, registry=theirs, buckets=bounds)
    for rank, gap in [(0, None), (0, 0.25), (1, None), (1, 0.001), (1, 0.0), (1, 5.0), (1, 7.5), (1, 0.3)]:
        tokens.take(rank, 3, gap)
        counter.labels(**engines[rank]).inc(3)
        if gap is not None:
            gaps.labels(**engines[rank]).observe(gap)
    assert generate_latest(ours) == generate_latest(theirs)


def test_tokens_are_counted_while_their_request_runs(server):
    before = values(server)["generation_tokens_total"]
    asked = {"prompt": [9] * 20, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=asked, timeout=30) as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("data:"):
            pass
        during = values(server)
        assert during["num_requests_running"] == 1
        assert 0 < during["generation_tokens_total"] - before < 400


def test_the_time_of_a_request_is_that_in_the_queue_of_its_prompt_and_of_its_tokens(server):
    before = values(server)
    asked = {"prompt": [11] * 30, "max_tokens": 8, "ignore_eos": True}
    assert server.post("/v1/completions", **asked).status_code == 200
    server.wait_until_idle()
    after = values(server)

    def seconds(name):
        return after[f"{name}_seconds_sum"] - before[f"{name}_seconds_sum"]

    queue, prefill, decode = (seconds(f"request_{part}_time") for part in ("queue", "prefill", "decode"))
    assert min(queue, prefill, decode) > 0
    assert queue + prefill == pytest.approx(seconds("time_to_first_token"))
    assert prefill + decode == pytest.approx(seconds("request_inference_time"))
    assert queue + prefill + decode == pytest.approx(seconds("e2e_request_latency"))
    assert after["request_params_max_tokens_sum"] - before["request_params_max_tokens_sum"] == 8


def test_what_waits_is_told_by_its_reason(server):
    server.post("/pause")
    plain = {"prompt": "x", "max_tokens": 2, "n": 3}
    grammar = {"prompt": "x", "max_tokens": 4, "structured_outputs": {"regex": "[a-z]+"}}
    threads = [
        threading.Thread(target=server.post, args=("/v1/completions",), kwargs=each) for each in (plain, grammar)
    ]
    for thread in threads:
        thread.start()
    reasons = [f"num_requests_waiting_by_reason reason={reason}" for reason in ("capacity", "grammar")]
    deadline = time.monotonic() + 30
    while [(found := values(server))[reason] for reason in reasons] != [3, 1]:
        assert time.monotonic() < deadline
    assert found["engine_paused"] == 1
    server.post("/resume")
    for thread in threads:
        thread.join()
    server.wait_until_idle()
    assert values(server)["engine_paused"] == 0


def test_the_phases_of_the_start_are_told(server):
    found = {name: value for name, value in values(server).items() if name.startswith("startup_seconds")}
    assert {"startup_seconds phase=load weights", "startup_seconds phase=total"} <= set(found)
    assert all(value >= 0 for value in found.values())


def test_a_response_of_the_background_is_counted_once(server):
    before = values(server)["request_params_n_count"]
    asked = {"model": "tiny", "input": "hello", "max_output_tokens": 16, "background": True}
    assert server.post("/v1/responses", **asked).status_code == 200
    server.wait_until_idle()
    assert values(server)["request_params_n_count"] == before + 1


def test_those_sent_away_are_counted(make_front):
    with make_front(ServerOptions(requests_per_minute=1, served_model_name="tiny")) as server:
        assert [server.post("/tokenize", prompt="a").status_code for _ in range(3)] == [200, 429, 429]
        assert values(server)["admission_rejections_total reason=rate_limit"] == 2


def test_tokens_that_a_grammar_forces_are_counted(server):
    before = values(server)["forced_tokens_total"]
    choice = {"structured_outputs": {"choice": ["an answer without any choice at all"]}}
    assert server.post("/v1/completions", prompt="say", max_tokens=40, **choice).status_code == 200
    server.wait_until_idle()
    assert values(server)["forced_tokens_total"] > before


def test_a_models_name_may_hold_anything(make_front):
    with make_front(ServerOptions(served_model_name='quo"te back\\slash')) as server:
        lines = [line for line in read(server).splitlines() if not line.startswith("#")]
    assert len(lines) > len(NAMES)
    assert all(LINE.fullmatch(line) and 'model_name="quo\\"te back\\\\slash"' in line for line in lines)
