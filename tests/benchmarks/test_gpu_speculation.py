"""The GPU benchmark of speculation: models agree as often as they should, and a trace tells what drafts take."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import agreeing, command, speculation, turns
from benchmarks.gpu.aims import aim_of, verdict
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.draft_spans import drafting_seconds, read_drafting
from benchmarks.gpu.gains import gains_table
from benchmarks.gpu.peer_speculation import unconditional_rates
from benchmarks.gpu.protocol import Sizes
from benchmarks.gpu.speculated_work import ACCEPTANCE, BEFORE, NUM_DRAFTS, rate_of, write_draft_config
from benchmarks.gpu.speculation import Side, compare

ROOT = Path(__file__).parents[2]
TINY = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 10016,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 1024, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SETTINGS = {"dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 4, "num_kv_blocks": 128, "num_threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreeing")
    (folder / "config.json").write_text(json.dumps(TINY))
    write_draft_config(TINY, folder / "head")
    return folder


@pytest.fixture(scope="module")
def sides(model: Path) -> Any:
    speculation = {"method": "eagle3", "model": str(model / "head"), "num_speculative_tokens": NUM_DRAFTS}
    speculation["adaptive"] = False
    found = (Side(model, SETTINGS), Side(model, SETTINGS | {"speculative_config": speculation}))
    yield found
    for side in found:
        side.close()


def test_as_many_drafts_are_right_as_should_be(sides: tuple[Side, Side]) -> None:
    temperature = agreeing.temperature_for(ACCEPTANCE, TINY["vocab_size"])
    sides[1].tokens_per_second([[5, 6, 7]] * 4, 150, temperature)
    steps, drafted, accepted, _ = sides[1].counts()
    assert drafted == NUM_DRAFTS * steps
    # 0.7 + 0.49 + 0.343 of three drafts, in steps whose deviation is 1.2.
    assert accepted / steps == pytest.approx(1.533, abs=0.25)


def test_both_ways_are_measured_in_turns_and_compared(sides: tuple[Side, Side]) -> None:
    without, with_drafts, gain = compare(sides, 2, 16, 1.0, repeats=2)
    assert [figure.unit for figure in (without, with_drafts, gain)] == ["tokens/s", "tokens/s", "x"]
    ratios = [fast / slow for slow, fast in zip(without.values, with_drafts.values, strict=True)]
    assert gain.values == pytest.approx(ratios)
    assert gain.about["accepted"] < gain.about["drafted"]


def test_engines_that_are_timed_record_no_trace_and_the_one_that_does_is_not_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[Any] = []
    made: list[dict[str, Any]] = []

    class Noted:
        def __init__(self, model: Path, settings: dict[str, Any]) -> None:
            made.append(settings)
            self.settings = settings

        def trace(self, context: int, temperature: float) -> Path:
            assert self.settings["mark_trace"]
            return Path("trace")

        def close(self) -> None:
            pass

    def compare(sides: tuple[Noted, Noted], *arguments: Any, **keywords: Any) -> list[Any]:
        timed.extend(sides)
        return []

    monkeypatch.setattr(speculation, "Side", Noted)
    monkeypatch.setattr(speculation, "compare", compare)
    monkeypatch.setattr(speculation, "read_drafting", lambda trace: [0.5, 0.25])
    monkeypatch.setattr(speculation, "measure_ceilings", lambda: Ceilings("a GPU", 1e6, 1e6))
    [figure] = speculation.speculation_figures(model, Sizes([2], [8], [], 1), max_model_len=512, settings={})
    assert ["torch_profiler_dir" in side.settings for side in timed] == [False, False]
    assert ["mark_trace" in settings for settings in made] == [False, False, True]
    assert figure.values[0] == 2 * figure.values[1]


def test_a_draft_model_that_is_never_right_follows_no_more_when_it_is_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[int] = []

    class Counted(Side):
        def tokens_per_second(self, *arguments: Any) -> float:
            drafts.append(self.counts()[0])
            return super().tokens_per_second(*arguments)

    monkeypatch.setattr(speculation, "TIMED", 16)
    monkeypatch.setattr(speculation, "Side", Counted)
    monkeypatch.setattr(speculation, "write_config", lambda name, folder: model)
    [figure] = speculation.never_right_figures(model, Sizes([2], [8], [], 1), max_model_len=512, settings=SETTINGS)
    assert (figure.unit, figure.about["kind"], len(figure.values)) == ("x", "never right", 1)
    # Before the first turn, which is not timed, and before the second.
    assert len({count for count in drafts[-4:] if count}) == 1


def test_the_gain_is_judged_by_the_batch_and_drafts_by_their_weights() -> None:
    at_one = aim_of("qwen3-8b", {"kind": "speculation", "batch": 1})
    assert at_one is not None
    assert verdict(1.6, at_one).startswith("met")
    assert verdict(1.4, at_one).startswith("**missed**")
    making = aim_of("qwen3-8b", {"kind": "drafting"})
    assert making is not None
    assert verdict(1.6, making).startswith("**missed** by 7%")
    assert verdict(1.503, making).startswith("**missed** by 0.2%"), "a miss is never told as none"
    assert aim_of("qwen3-8b", {"kind": "speculation", "batch": 7}) is None


def test_each_draft_reads_a_layer_and_a_head_and_all_together_the_mixture_once(tmp_path: Path) -> None:
    head = write_draft_config(TINY, tmp_path)
    layer = 32 * 48 * 3 + 2 * 32 * 16 * (4 + 2 * 2) + 4 * 16 * 32
    assert agreeing.draft_bytes(head, 3) == 2 * (3 * 32 * 32 + 3 * (layer + 10016 * 32))


def event(category: str, start: float, length: float, name: str = "", number: int | None = None) -> dict[str, Any]:
    arguments = {} if number is None else {"correlation": number}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": arguments}


def test_kernels_belong_to_the_mark_under_which_they_were_launched_and_steps_of_fewer_drafts_are_left_out(
    tmp_path: Path,
) -> None:
    events = [
        event("user_annotation", 0, 10, "sample"),
        event("cuda_runtime", 5, 1, number=1), event("kernel", 20, 30, number=1),
        event("user_annotation", 10, 10, "draft"),
        event("cuda_runtime", 12, 1, number=2), event("kernel", 50, 10, number=2), event("kernel", 70, 20, number=2),
        event("cuda_driver", 14, 1, number=3), event("kernel", 95, 5, number=3),
        event("user_annotation", 100, 10, "draft"),
        event("cuda_runtime", 101, 1, number=4), event("kernel", 110, 3, number=4), event("kernel", 115, 1, number=4),
        {"ph": "i", "cat": "user_annotation", "name": "draft", "ts": 0},
    ]  # fmt: skip
    assert drafting_seconds(events) == pytest.approx([50e-6])
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events[:3]}).encode()))
    with pytest.raises(ValueError, match="no kernels"):
        read_drafting(trace)


def test_speculation_has_a_process_of_its_own_once() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(["decode", "speculation"])
    first = turns.sessions_of("atom", options, is_first=True)
    assert [session.scenarios for session in first] == [["decode"], ["never right"], ["speculation"]]
    assert [session.scenarios for session in turns.sessions_of("atom", options, is_first=False)] == [["decode"]]
    peer = turns.sessions_of("vllm", options, is_first=True)
    assert [session.scenarios for session in peer] == [["decode"], ["speculation"], ["speculation"]]
    assert [session.has_drafts for session in peer] == [False, False, True]
    names = [command._name(parser.parse_args(given)) for given in (["decode", "speculation"], ["speculation"])]
    assert names == ["gpu", "gpu-speculation"]


def result_of(figure: str, unit: str, values: list[float], **about: Any) -> dict[str, Any]:
    median = sorted(values)[len(values) // 2]
    ours = {"version": "1", "turns": [values], "median": median, "range": [min(values), max(values)]}
    return {"model": "qwen3-8b", "figure": figure, "unit": unit, "about": about, "engines": {"atom": ours}}


def test_the_table_of_gains_has_a_row_for_each_batch_and_judges_it() -> None:
    seen = {"rows_with_drafts": 100, "drafted": 300, "accepted": 153}
    results = [
        result_of("without", "tokens/s", [177.0], batch=1, kind="without drafts"),
        result_of("with", "tokens/s", [300.0], batch=1, kind="with drafts"),
        result_of("gain", "x", [1.65, 1.7, 1.75], batch=1, kind="speculation", **seen),
        result_of("making 3 drafts", "x", [1.6], kind="drafting"),
        result_of("a draft model that is never right, batch 1", "x", [0.98], kind="never right", batch=1),
    ]
    document = {
        "machine": {"device": "A GPU", "commit": "abc", "date": "2026-11-25 16:00", "versions": {"torch": "2"}},
        "settings": {"dtype": "bfloat16"}, "copy_tb_per_s": 3.0, "matmul_tflop_per_s": 800.0, "results": results,
    }  # fmt: skip
    table = gains_table(document)
    assert [cell.strip() for cell in table.splitlines()[2].strip("| ").split("|")] == [
        *("qwen3-8b", "1", "177.00 tokens/s", "300.00 tokens/s", "1.70 (1.65 - 1.75)"),
        *("1.50", "1.90", "met; 11% off the aim", "1.53 of 3.00"),
    ]
    assert "qwen3-8b, making 3 drafts: 1.60 (1.60 - 1.60) (must 1.50, aim 1.10: **missed** by 7%" in table
    assert "qwen3-8b, a draft model that is never right, batch 1: 0.98 (0.98 - 0.98) (must 0.97, aim 1.00: met" in table


def test_a_peer_that_was_measured_has_a_table_of_its_own() -> None:
    results = [
        result_of("without", "tokens/s", [177.0], batch=1, kind="without drafts"),
        result_of("with", "tokens/s", [300.0], batch=1, kind="with drafts"),
    ]
    for result, median in zip(results, (150.0, 240.0), strict=True):
        result["engines"]["vllm"] = {"version": "0", "turns": [[median]], "median": median, "range": [median] * 2}
        result["ours_over_peer"] = round(result["engines"]["atom"]["median"] / median, 3)
    document = {
        "machine": {"device": "A GPU", "commit": "abc", "date": "2026-11-25 16:00", "versions": {"torch": "2"}},
        "settings": {"dtype": "bfloat16"}, "copy_tb_per_s": 3.0, "matmul_tflop_per_s": 800.0, "results": results,
    }  # fmt: skip
    rows = [line for line in gains_table(document).splitlines() if line.startswith("| qwen3-8b")]
    assert [cell.strip() for cell in rows[-1].strip("| ").split("|")] == [
        *("qwen3-8b", "1", "150.00 tokens/s", "240.00 tokens/s", "1.60", "1.25"),
    ]


def test_a_peer_is_told_how_often_each_draft_is_accepted() -> None:
    assert unconditional_rates(0.5, 3) == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(("each", "is_over"), [([1, 9], True), ([1, 1], False)])
def test_a_rate_is_that_of_requests_which_all_run(each: list[int], is_over: bool) -> None:
    counts = {"a": 0, "b": 0}

    def step() -> None:
        counts["a"] += each[0]
        counts["b"] += each[1]

    if is_over:
        with pytest.raises(RuntimeError, match="ended before"):
            rate_of(counts, step, 200)
    else:
        assert rate_of(counts, step, 200) > 0
        assert sum(counts.values()) == 2 * (BEFORE + 200)


def test_what_vllm_runs_imports_no_package_of_ours():
    """Its process has the peer's packages alone on its path."""
    code = "import sys, benchmarks.gpu.peer_speculation; print([n for n in sys.modules if n.startswith('atom_')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "[]\n"
