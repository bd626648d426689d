"""The GPU benchmark asks of every engine the same, and compares medians over all turns."""

from __future__ import annotations

import random
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import gpu
from benchmarks.gpu import engines, tables
from benchmarks.gpu.aims import Aim, aim_of, beside_ours
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.floors import decode_seconds, prefill_seconds, shape_of
from benchmarks.gpu.headlines import headlines
from benchmarks.gpu.hosts import with_quick_host
from benchmarks.gpu.models import MODELS, config_of, write_config
from benchmarks.gpu.pictures import FULL, LEFT, pictures
from benchmarks.gpu.profiles import (
    Span,
    Window,
    decode_profile,
    kernels_of,
    middle_window,
    part_of,
    prefill_profile,
    steady_windows,
)
from benchmarks.gpu.protocol import Figure, Sizes
from benchmarks.gpu.served.load import Part, Stream, Workload
from benchmarks.gpu.workloads import Measurement, random_prompt

SIZES = Sizes(
    batch_sizes=(2,), contexts=(16,), prompts=(32,), repeats=1, long_batch_sizes=(1, 4), long_contexts=(4096,)
)
RATES = Ceilings("GPU", 3.0e12, 798e12)


class Recorder:
    """An engine whose every token takes a tenth of a millisecond."""

    name, version, cache_tokens = "atom", "1", 10_000

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[int], float]] = []

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        self.calls.append(([len(prompt) for prompt in prompts], list(max_tokens), temperature))
        time.sleep(max(max_tokens) * 1e-4)

    def closed_loop(
        self, prompts: Sequence[list[int]], max_tokens: Sequence[int], in_flight: int, temperature: float
    ) -> None:
        self.generate(prompts, max_tokens, temperature)

    def arrivals(self, prompts: Sequence[list[int]], num_tokens: int, temperature: float) -> list[float]:
        return [index * 2e-3 for index in range(num_tokens)]


def measure(engine: Recorder, scenarios: list[str], sizes: Sizes) -> list[Figure]:
    return list(Measurement(engine, sizes).run(scenarios))


def test_the_offline_workload_is_the_published_one() -> None:
    engine = Recorder()
    figures = measure(engine, ["offline"], SIZES)
    lengths, tokens, temperature = engine.calls[1]
    assert (len(lengths), sum(tokens), temperature) == (256, 133_966, 0.6)
    assert figures[0].unit == "tokens/s"
    assert engine.calls[0] == (lengths, [count // 8 for count in tokens], 0.6)


def test_a_decode_step_is_the_difference_of_two_lengths() -> None:
    engine = Recorder()
    [figure] = measure(engine, ["greedy"], SIZES)
    assert [(lengths, tokens[0], temperature) for lengths, tokens, temperature in engine.calls] == [
        ([16, 16], 8, 0.0),
        ([16, 16], 136, 0.0),
        ([16, 16], 8, 0.0),
    ]
    assert figure.values[0] == pytest.approx(0.1, rel=0.5)


def test_the_size_of_the_cache_is_a_figure_held_to_the_peers() -> None:
    [figure] = measure(Recorder(), ["cache"], SIZES)
    assert (figure.values, figure.unit) == ([10_000.0], "tokens")
    cache, long_prompt, decode = ({"kind": "cache"}, {"kind": "prefill", "tokens": 32768},
                                  {"kind": "decode", "batch": 16, "context": 3000})  # fmt: skip
    assert [aim_of("qwen3-14b", about) for about in (cache, long_prompt, decode)] == [
        Aim(0.98, 1.02), Aim(1.0, 0.90), Aim(1.0, 0.90)
    ]  # fmt: skip


def test_prompts_of_a_warm_prefix_share_their_beginning() -> None:
    engine = Recorder()
    figures = measure(engine, ["prefix"], SIZES)
    assert [figure.figure.rpartition(", ")[2] for figure in figures] == ["cold", "warm"]
    assert engine.calls[1] == ([4224] * 64, [128] * 64, 0.6)


def test_a_side_that_stops_early_is_an_error_and_no_figure() -> None:
    with pytest.raises(RuntimeError, match="asked for 20 tokens and got 18"):
        engines._check([10, 8], [10, 10])


def test_long_decodes_are_timed_once_their_prompts_are_done_and_skipped_where_they_would_queue() -> None:
    engine = Recorder()
    alone, together = measure(engine, ["long"], SIZES)
    assert alone.figure == "decode step, batch 1, context 4096"
    assert alone.values == pytest.approx([2.0] * 4)
    assert (together.values, together.skipped) == ([], "the KV cache holds 10000 tokens, not 17472")


def test_arrivals_are_those_of_the_last_of_all_prompts() -> None:
    news = iter([{"a": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 2}, {"a": 4, "b": 3}])
    times = engines.arrivals_of(["a", "b"], 3, lambda: next(news))
    assert len(times) == 3
    assert times == sorted(times)
    with pytest.raises(RuntimeError, match="ended before the others"):
        engines.arrivals_of(["a", "b"], 1, lambda: {"a": 1 + engines.HEAD_START, "b": 1})


def told(engine: str, turn: int, values: list[float], **more: object) -> dict[str, object]:
    return {"model": "m", "turn": turn, "engine": engine, "version": "1", "figure": "step", "unit": "ms",
            "about": {}, "values": values, "skipped": None} | more  # fmt: skip


def document_of(results: list[dict[str, object]], **more: object) -> dict[str, object]:
    return {
        "machine": {"device": "GPU", "versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-01 00:00 UTC"},
        "settings": {"dtype": "bfloat16"},
        "copy_tb_per_s": 3.0,
        "matmul_tflop_per_s": 800.0,
        "results": results,
    } | more


def test_rows_tell_their_commit_where_they_are_of_several() -> None:
    entries, _ = gpu.summarize([told("atom", 0, [1.0])], RATES)
    assert "commit |" not in tables.gpu_table(document_of(entries))
    older = [entry | {"figure": "an older one", "commit": "0ld"} for entry in entries]
    lines = tables.gpu_table(document_of([*older, *entries])).splitlines()
    assert lines[0].endswith("| commit |")
    assert [line.split("|")[-2].strip() for line in lines[2:4]] == ["0ld", "abc"]


def test_the_other_engine_gets_weights_like_ours_so_that_no_bias_alone_chooses_experts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64, bias=False))
    engines.fill_as_ours(model)
    assert float(model[0].weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert model[0].bias.eq(0).all()
    assert model[1].weight.eq(1).all()


def test_a_closed_loop_gives_a_prompt_for_each_that_has_ended() -> None:
    running: list[int] = []
    seen: list[int] = []

    def step() -> int:
        seen.append(len(running))
        ended = min(2, len(running))
        del running[:ended]
        return ended

    engines.run_closed_loop([[1]] * 9, list(range(9)), 4, lambda prompt, count: running.append(count), step)
    assert seen == [4, 4, 4, 3, 1]
    assert not running


def test_ours_is_compared_by_the_medians_of_all_turns() -> None:
    measured = [told("atom", 0, [1.0, 2.0]), told("vllm", 1, [4.0]), told("atom", 2, [3.0])]
    [entry], failures = gpu.summarize(measured, RATES)
    assert entry["engines"]["atom"]["range"] == [1.0, 3.0]
    assert entry["ours_over_peer"] == 0.5
    assert failures == []
    assert "| m     | step   | 2.00 ms (1.00 - 3.00) | 4.00 ms | 0.50" in tables.gpu_table(document_of([entry]))


def test_what_failed_and_what_had_no_room_is_told_beside_the_rest() -> None:
    measured = [
        told("atom", 0, [], skipped="the KV cache holds 3 tokens, not 4"),
        told("atom", 0, [1.0], figure="other"),
        {"model": "m", "turn": 1, "engine": "vllm", "failure": "status 1: Traceback\nImportError: no vllm"},
    ]
    results, failures = gpu.summarize(measured, RATES)
    table = tables.gpu_table(document_of(results, failures=failures))
    assert "the KV cache holds 3 tokens, not 4" in table
    assert "1.00 ms" in table
    assert "vllm failed on m: ImportError: no vllm" in table


def test_floors_are_those_of_the_bytes_and_operations_of_a_model() -> None:
    def floor(model: str, **about: object) -> float | None:
        [result], _ = gpu.summarize([told("atom", 0, [1.0], model=model, about=about)], RATES)
        return result.get("floor")

    decodes = [floor("qwen3-0.6b", kind="decode", batch=size, context=1024, steps=0) for size in (1, 32, 128)]
    assert decodes == pytest.approx([0.437, 1.663, 5.460], abs=1e-3)
    assert floor("qwen3-8b", kind="prefill", tokens=8192) == pytest.approx(167.82, abs=0.01)
    assert floor("qwen3-8b", kind="offline") == pytest.approx(9674, abs=1)
    assert floor("gpt-oss-20b", kind="decode", batch=32, context=1024, steps=0) == pytest.approx(13.693, abs=1e-3)
    packed = [floor("gpt-oss-20b-mxfp4", kind="decode", batch=size, context=1024, steps=0) for size in (1, 32)]
    assert packed == pytest.approx([1.244, 4.467], abs=1e-3)
    # A token's latents in 27 layers: 576 numbers of two bytes each.
    lite = [floor("deepseek-v2-lite", kind="decode", batch=1, context=size, steps=0) for size in (1000, 2000)]
    assert 1e-3 * (lite[1] - lite[0]) == pytest.approx(1000 * 27 * 576 * 2 / 3.0e12)
    # Keys and values in 12 of 48 layers: of 2 heads, 256 numbers of two bytes each.
    hybrid = [floor("qwen3-next-80b", kind="decode", batch=1, context=size, steps=0) for size in (1000, 2000)]
    assert 1e-3 * (hybrid[1] - hybrid[0]) == pytest.approx(1000 * 12 * 2 * 2 * 256 * 2 / 3.0e12)
    assert floor("qwen3-0.6b", kind="idle") is None


def test_a_delta_net_reads_and_writes_a_state_of_each_request() -> None:
    shape = shape_of(config_of("qwen3-next-80b", 4))
    without = replace(shape, num_states=0, num_layers=1)
    more = decode_seconds(shape, 64, 1000, RATES) - decode_seconds(without, 64, 1000, RATES)
    assert more == pytest.approx(64 * 3 * 2 * 4 * 32 * 128 * 128 / 3.0e12)
    more = prefill_seconds(shape, 1000, RATES) - prefill_seconds(without, 1000, RATES)
    assert more == pytest.approx(1000 * 3 * 7 * 32 * 128 * 128 / 798e12)


def test_ranks_share_the_floor() -> None:
    def floor(num_ranks: int, **about: object) -> float:
        results, _ = gpu.summarize([told("atom", 0, [1.0], model="qwen3-8b", about=about)], RATES, num_ranks=num_ranks)
        return results[0]["floor"]

    for about in ({"kind": "decode", "batch": 1, "context": 1024, "steps": 0}, {"kind": "prefill", "tokens": 8192}):
        assert floor(2, **about) == pytest.approx(floor(1, **about) / 2)
    assert floor(4, kind="offline") == pytest.approx(4 * floor(1, kind="offline"))


def test_the_cost_of_a_setting_and_the_misses_of_aims_are_tables_of_their_own() -> None:
    about = {"kind": "decode", "batch": 32, "context": 1024, "steps": 72}
    figure = "decode step, batch 32, context 1024"
    facts = {"model": "qwen3-0.6b", "figure": figure, "about": about}

    def told_with(label: str, value: float) -> dict[str, object]:
        return told("atom", 0, [value], **facts | {"figure": f"{figure}, {label}", "about": about | {"with": label}})

    ours = [told("atom", 0, [2.4], **facts), told_with("batch_invariant=true", 3.6), told_with("level=1", 1.2)]
    results, _ = gpu.summarize([*ours, told("vllm", 1, [3.0], **facts)], RATES)
    filled = gpu.gpu_tables(document_of(results))
    assert "| 2.40 ms     | 3.60 ms (1.50x)      |" in filled["invariance"]
    assert "| 2.40 ms     | 1.20 ms (0.50x) |" in filled["modes"]
    older = [*results[:1], results[1] | {"commit": "0ld"}]
    assert "| 2.40 ms     | 3.60 ms              |" in gpu.gpu_tables(document_of(older))["invariance"]
    assert "| 0.90 x vLLM | 0.70 x vLLM | 0.80 x vLLM | met; 14% off the aim |" in filled["decode"]
    assert "3.60" not in filled["figures"]
    assert "prefill" not in filled


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("prefill_kernel", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>", "attention"),
        ("skinny_linear_kernel", "linears"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "linears"),
        ("add_rms_norm_kernel", "norms and activations"),
        ("gated_activation_kernel", "norms and activations"),
        ("hopper_scan_kernel", "delta nets"),
        ("gated_rms_norm_kernel", "norms and activations"),
        ("experts_kernel", "experts"),
        ("sort_pairs_kernel", "experts"),
        ("draw_kernel", "sampling"),
        ("pivot_sum_kernel", "sampling"),
        ("Memcpy HtoD (Pinned -> Device)", "inputs and copies"),
        ("build_inputs_kernel", "inputs and copies"),
        ("something new", "other"),
    ],
)
def test_kernels_are_told_apart_by_what_they_do(kernel: str, part: str) -> None:
    assert part_of(kernel) == part


def test_the_parts_of_a_profile_and_its_gaps_are_the_whole_time() -> None:
    spans = [Span(0, 40, "prefill_kernel"), Span(30, 60, "nvjet_a"), Span(80, 100, "draw_kernel")]
    assert decode_profile(Window(100, spans), 2.0) == pytest.approx(
        {"attention": 0.8, "linears": 0.4, "sampling": 0.4, "idle": 0.4}
    )
    assert kernels_of("linears", [*spans, Span(100, 190, "nvjet_b")]) == ["nvjet_b", "nvjet_a"]
    assert prefill_profile(spans, 1.0) == pytest.approx(
        {"attention": 0.04, "linears": 0.02, "sampling": 0.02, "idle": 0.92}
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_shape_is_a_model_that_this_version_builds(name: str, tmp_path) -> None:
    from atom_models import open_checkpoint
    from atom_models.architectures.registry import find_architecture

    config = open_checkpoint(write_config(name, tmp_path, num_layers=2)).config
    assert config.get("text_config", config)["num_hidden_layers"] == 2
    assert find_architecture(config["architectures"][0]).__name__ == config["architectures"][0]


def test_random_prompts_stay_in_small_vocabularies() -> None:
    assert max(random_prompt(random.Random(0), 1000)) <= 10000


def test_kernels_that_overlap_count_once() -> None:
    spans = [Span(start, end, "nvjet_a") for start, end in ((0, 4), (1, 3), (3, 5), (8, 10))]
    assert Window(10, spans).idle_share == pytest.approx(0.3)


def test_a_moment_in_which_the_host_was_stopped_is_one_window_of_many() -> None:
    spans = [Span(10 * layer, 10 * layer + 10, "prefill_kernel") for layer in range(40)] + [
        Span(400, 410, "draw_kernel")
    ]
    start = 410
    for step in range(31):
        start += 1000 * (step == 20)
        spans += [Span(start + 10 * layer, start + 10 * layer + 8, "decode_kernel") for layer in range(9)]
        spans.append(Span(start + 90, start + 98, "draw_kernel"))
        # The last steps have fewer requests, and kernels for them.
        spans += [Span(start + 90, start + 90, "small_kernel")] * 4 * (step > 28)
        start += 100
    windows = steady_windows(spans, 31)
    assert [round(window.idle_share, 2) for window in windows] == [0.77, 0.2, 0.2]
    assert [len(window.spans) for window in windows] == [40, 40, 40]
    assert middle_window(windows) == windows[2]
    with pytest.raises(ValueError, match="no kernel ran in each of 4000 steps"):
        steady_windows(spans, 4000)


@pytest.mark.parametrize(
    ("model", "about", "subject"),
    [
        ("qwen3-8b", {"kind": "decode"}, "decode"),
        ("qwen3-8b", {"kind": "idle"}, "decode"),
        ("qwen3-8b", {"kind": "profile", "of": "prefill of 8192", "part": "idle"}, "prefill"),
        ("qwen3-8b", {"kind": "start"}, "start"),
        ("qwen3-30b-a3b (12 layers)", {"kind": "prefill"}, "mixtures"),
        ("deepseek-v2-lite", {"kind": "decode"}, "latent"),
    ],
)
def test_each_figure_is_discussed_in_one_place(model: str, about: dict[str, object], subject: str) -> None:
    assert tables.subject_of({"model": model, "about": about}) == subject


def test_headlines_have_a_row_for_each_model_that_was_measured_beside_a_peer() -> None:
    facts = {"figure": "decode step, batch 32, context 1024", "unit": "ms"}
    facts["about"] = {"kind": "decode", "batch": 32, "context": 1024, "steps": 72}
    entries = [told(engine, 0, [time], model="qwen3-0.6b", **facts) for engine, time in (("atom", 2.0), ("vllm", 4.0))]
    results, _ = gpu.summarize([*entries, told("atom", 0, [9.0], model="deepseek-v2-lite", **facts)], RATES)
    [header, _, row] = headlines(document_of(results)).split("\n\n")[0].splitlines()
    assert [cell.strip() for cell in row.split("|")][1:4] == ["qwen3-0.6b", "", "2.00 ms (0.50x)"]
    assert header.count("|") == row.count("|")


def test_aims_are_judged_by_the_quick_host_where_it_measured_them() -> None:
    facts = {"model": "qwen3-0.6b", "figure": "decode step, batch 1, context 1024", "unit": "ms"}
    facts["about"] = {"kind": "decode", "batch": 1, "context": 1024, "steps": 72}

    def measured(ours: float, theirs: float) -> list[dict[str, object]]:
        return gpu.summarize([told("atom", 0, [ours], **facts), told("vllm", 1, [theirs], **facts)], RATES)[0]

    slow, quick = document_of(measured(1.0, 2.5)), document_of(measured(0.9, 1.5))
    together = with_quick_host(slow, quick)
    filled = gpu.gpu_tables(together)
    assert "quick host | 0.70 x vLLM | 0.50 x vLLM | 0.60 x vLLM | met; 20% off the aim |" in filled["decode"]
    assert "0.40" in filled["hosts"]
    assert "0.60" in filled["hosts"]
    assert "1.00 ms (0.40x, 0.60x)" in headlines(together)
    assert "hosts" not in gpu.gpu_tables(slow)


def test_headlines_tell_starts_that_were_timed_with_caches_warm_and_cold() -> None:
    entries = [
        told(engine, 0, [time], model="qwen3-0.6b", figure=caches, unit="s", about={"kind": "start", "caches": caches})
        for engine, caches, time in (
            ("atom", "warm", 7.0), ("vllm", "warm", 36.0), ("atom", "cold", 15.0), ("vllm", "cold", 114.0),
        )
    ]  # fmt: skip
    results, _ = gpu.summarize(entries, RATES)
    *_, starts = headlines(document_of(results)).split("\n\n")
    assert "takes 7.0 s, and 15.0 s where nothing was compiled before; vLLM takes 36.0 and 114.0 s." in starts
    assert "takes" not in headlines(document_of(results[:1]))


def test_a_profile_shows_milliseconds_and_shares() -> None:
    facts = {"model": "qwen3-8b", "unit": "ms"}
    parts = [("attention", 3.0), ("idle", 1.0)]
    results, _ = gpu.summarize(
        [
            told("atom", 0, [time], **facts, figure=part, about={"kind": "profile", "of": "prefill of 8", "part": part})
            for part, time in parts
        ],
        RATES,
    )
    [header, _, row] = gpu.gpu_tables(document_of(results))["prefill"].splitlines()
    assert [cell.strip() for cell in header.split("|")] == ["", "model", "of", "engine", "attention", "idle", ""]
    assert "3.00 ms, 75% | 1.00 ms, 25%" in row


def test_pictures_have_a_bar_for_each_engine_and_a_mark_at_the_floor() -> None:
    facts = {"model": "qwen3-0.6b", "about": {"kind": "decode", "batch": 32, "context": 1024, "steps": 72}}
    results, _ = gpu.summarize([told("atom", 0, [2.0], **facts), told("vllm", 1, [4.0], **facts)], RATES)
    drawn = pictures(document_of(results))
    assert list(drawn) == ["gpu-decode.svg"]
    image = ElementTree.fromstring(drawn["gpu-decode.svg"])
    bars = {
        bar.get("class"): float(bar.get("width", 0))
        for bar in image.findall(".//{*}rect")
        if bar.get("class") != "back"
    }
    assert bars == {"atom": FULL / 2, "vllm": FULL}
    [mark] = image.findall(".//{*}line")
    assert float(mark.get("x1", 0)) == pytest.approx(LEFT + FULL * results[0]["floor"] / 4, abs=0.06)
    text = "".join(image.itertext())
    assert "batch 32, context 1024" in text
    assert "ATOM 2.00 ms" in text


def test_kernels_are_held_to_their_aims_too() -> None:
    case = {
        "operator": "latent_attention",
        "model": "DeepSeek-V2-Lite",
        "case": "attention alone, decode 128 x 1k",
        "copy_share": 0.66,
    }
    [_, _, row] = gpu.gpu_tables(document_of([]), [case])["latent"].splitlines()
    assert "66.0% of copy rate" in row
    assert "met; 12% off the aim" in row


def test_vllm_finds_our_plugins_without_an_installation(tmp_path: Path):
    from importlib.metadata import distributions

    from benchmarks.gpu.plugin import write_metadata

    [found] = distributions(path=[str(write_metadata(tmp_path))])
    points = {(point.group, point.name): point.value for point in found.entry_points}
    assert (found.name, found.version) == ("atom-vllm", "0.1.0")
    assert points[("vllm.platform_plugins", "atom")] == "atom_vllm.register:register_platform"
    assert points[("vllm.general_plugins", "atom_model_registry")] == "atom_vllm.register:register_model"


def test_beside_the_plugin_stock_vllm_runs_without_it():
    from benchmarks.gpu.settings import environment_of

    ours, stock = (environment_of(engine, "/vllm", None, "/plugin:/vllm") for engine in ("atom", "vllm"))
    assert (ours["ATOM_DISABLE_VLLM_PLUGIN"], stock["ATOM_DISABLE_VLLM_PLUGIN"]) == ("0", "1")
    assert ours["PYTHONPATH"] == stock["PYTHONPATH"] == "/plugin:/vllm"


def test_packed_weights_and_caches_are_held_to_ours_beside_them() -> None:
    def step(model: str, median: float, batch: int, context: int = 1024, **about: Any) -> dict[str, Any]:
        figure = f"decode step, batch {batch}, context {context}" + "".join(f", {what}" for what in about.values())
        about = {"kind": "decode", "batch": batch, "context": context} | about
        engines = {"atom": {"median": median}}
        return {"model": model, "figure": figure, "unit": "ms", "about": about, "engines": engines, "floor": 4.0}

    results = [
        *(step("llama-3.1-8b", 8.0, 1), step("llama-3.1-8b-int4", 4.0, 1)),
        *(step("qwen2.5-7b-fp8-blocks", 3.0, 1), step("qwen2.5-7b-fp8", 2.0, 1), step("qwen2.5-7b", 4.0, 1)),
        step("qwen2.5-7b", 15.0, 128, 4096),
        step("qwen2.5-7b", 12.0, 128, 4096, **{"with": "kv_cache_dtype=fp8"}),
        step("gpt-oss-20b-mxfp4", 7.0, 32),
    ]
    found = [(result["model"], round(ratio, 3), what) for result, _, ratio, what in beside_ours(results)]
    assert found == [
        ("llama-3.1-8b-int4", 0.5, "bfloat16"),
        ("qwen2.5-7b-fp8-blocks", 0.75, "bfloat16"),
        ("qwen2.5-7b-fp8", 0.5, "bfloat16"),
        ("qwen2.5-7b", 0.8, "a plain cache"),
        ("gpt-oss-20b-mxfp4", 1.75, "the floor"),
    ]
    table = tables.aims_table(results)
    assert "0.71 x a plain cache | 0.71 x a plain cache | 0.80 x a plain cache | **missed** by 12%" in table


def test_a_stream_that_was_cut_off_has_waited_to_the_end() -> None:
    streams = [Stream(0.0, [0.5, 0.75, 2.5], is_whole=True), Stream(1.0, [1.25, 1.5]), Stream(2.0)]
    part = Part(streams, began=0.0, ended=4.0, tokens_out=8)
    assert part.first_tokens == [0.25, 0.5, 2.0]
    assert part.longest_gap == 2.5
    # An answer that came whole has all its tokens, however many events brought them.
    assert part.tokens_per_second == (8 + 2) / 4


def test_prompts_of_a_workload_share_what_it_says_and_no_more() -> None:
    workload = Workload("half", 2, 32, 4, num_shared=16)
    bodies = workload.bodies("model", random.Random(1))
    first, second = (next(bodies)["prompt"] for _ in range(2))
    assert (len(first), len(second)) == (32, 32)
    assert first[:16] == second[:16]
    assert first[16:] != second[16:]
    assert first[:16] == next(workload.bodies("model", random.Random(2)))["prompt"][:16]
