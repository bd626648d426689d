"""The parts of the benchmarks: timing in turns, rooflines, reports and charts."""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import pytest

from benchmarks import chart, documents, http_overhead, machine, report, roofline, tables, timing
from benchmarks.__main__ import main
from benchmarks.sides import SideProcess

SMOL = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}


def make_document(**overrides) -> dict:
    engine = {"median_ms": 10.0, "quartiles_ms": [9.0, 11.0], "tokens_per_s": 100.0, "roofline_share": 0.5}
    slow = engine | {"median_ms": 20.0, "quartiles_ms": [19.0, 21.0]}
    return {
        "benchmark": "offline",
        "machine": {
            "cpu": "A Fine CPU",
            "num_cores": 2,
            "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
            "commit": "abc",
            "date": "2026-01-02 03:04 UTC",
        },
        "settings": {"model": "smollm2", "dtype": "bfloat16", "threads": 2},
        "quiet": True,
        "share_used_by_others": 0.0,
        "read_gb_per_s": 50.0,
        "matmul_tflop_per_s": 0.9,
        "results": [
            {
                "scenario": "decode, batch 1, context 512",
                "roofline_ms": 5.0,
                "engines": {"atom": engine, "transformers": slow},
                "times_faster_than": {"transformers": {"median": 2.0, "lowest_turn": 1.9, "highest_turn": 2.1}},
            }
        ],
    } | overrides


def test_a_side_that_does_not_end_is_killed():
    endless = "import json, time; print(json.dumps(dict(answer=1)), flush=True); time.sleep(1000)"
    side = SideProcess("endless", command=(sys.executable, "-c", endless))
    side.close(0.1)
    assert not Path(f"/proc/{side.pid}").exists()


def test_the_sides_take_turns_and_the_first_one_also_goes_last():
    calls: list[str] = []
    sides = {
        "a": partial(timing.take_turn, lambda: calls.append("a")),
        "b": partial(timing.take_turn, lambda: calls.append("b")),
    }
    timings = timing.interleave(sides, turns=2, steps=3, warm_up=1)
    assert "".join(calls) == "aaaabbbbaaaabbbbaaaa"
    assert [len(timings[name].steps) for name in "ab"] == [9, 6]


def test_a_ratio_above_one_says_that_ours_is_faster():
    ours = timing.Timings([[1.0, 1.0], [2.0, 2.0]])
    peer = timing.Timings([[3.0, 3.0], [4.0, 4.0]])
    assert timing.ratios(ours, peer) == {"median": 2.333, "lowest_turn": 2.0, "highest_turn": 3.0}


def test_one_decode_step_reads_every_weight_once_and_the_cache():
    work = roofline.step_work(SMOL, num_requests=1, new_tokens=1, context=512, dtype="bfloat16")
    weights = 2 * (134_515_008 - 61 * 576)  # all parameters but the norms, in two bytes
    cache = 512 * 30 * 2 * 3 * 64 * 2
    assert work.num_bytes == weights + cache


def test_prefill_of_a_prompt_counts_each_pair_of_tokens_once():
    one = roofline.step_work(SMOL, num_requests=1, new_tokens=4, context=4, dtype="bfloat16")
    parts = [
        roofline.step_work(SMOL, num_requests=1, new_tokens=1, context=context, dtype="bfloat16")
        for context in (1, 2, 3, 4)
    ]
    head = 2 * 576 * 49152
    assert one.num_operations == sum(part.num_operations - head for part in parts) + head


def test_the_roofline_is_the_slower_of_memory_and_arithmetic():
    rates = roofline.MachineRates(bytes_per_second=10.0, operations_per_second=100.0)
    assert rates.least_seconds(roofline.StepWork(num_bytes=20.0, num_operations=100.0)) == 2.0
    assert rates.least_seconds(roofline.StepWork(num_bytes=20.0, num_operations=300.0)) == 3.0


def test_rates_are_measured_on_this_machine():
    rates = roofline.measure_rates("float32", megabytes=8, matrix=64, repeats=2)
    assert rates.bytes_per_second > 0
    assert rates.operations_per_second > 0


def test_a_machine_is_described_in_json():
    described = json.loads(json.dumps(machine.describe()))
    assert described["cpu"]
    assert described["versions"]["torch"].startswith("2.")


def test_a_result_is_saved_under_its_benchmark_and_cpu_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    document = make_document()
    path = report.save(document)
    assert path.name == "offline-a-fine-cpu-2-cores.json"
    assert report.load_all("offline", tmp_path) == [document]


def test_the_table_says_how_many_times_faster():
    table = tables.offline_table(make_document())
    assert "2.00x as fast (1.90 - 2.10)" in table
    assert "NOT quiet" not in table


def test_the_table_says_when_the_machine_was_busy():
    assert "NOT quiet" in tables.offline_table(make_document(share_used_by_others=0.3))


def test_the_chart_is_well_formed_and_names_every_engine():
    drawn = chart.draw(make_document())
    root = ElementTree.fromstring(drawn)
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "atom 10.0 ms" in texts
    assert "transformers 20.0 ms" in texts


def test_the_readme_keeps_everything_but_its_measured_part():
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter"
    new = chart.with_tables(text, {"offline": [make_document()]})
    assert new.startswith("before\n")
    assert new.endswith("\nafter")
    assert "old" not in new
    assert chart.with_tables(new, {"offline": [make_document()]}) == new


def test_a_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match="lacks the marks"):
        chart.with_tables("nothing here", {"offline": [make_document()]})


def test_the_pages_show_the_saved_results(capsys: pytest.CaptureFixture[str]):
    assert main(["chart", "--check"]) == 0, capsys.readouterr().out


def test_a_page_that_shows_other_results_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    readme = tmp_path / "README.md"
    readme.write_text((chart.ROOT / "README.md").read_text().replace("x as fast (", "x as quick (", 1))
    assert main(["chart", "--check", "--readme", str(readme)]) == 1
    assert f"{readme} does not show" in capsys.readouterr().out


def test_saved_results_are_of_clean_commits():
    """A result of a checkout that differs from its commit is one that nobody can measure again."""
    found = {path.name: json.loads(path.read_text()) for path in sorted(report.RESULTS.glob("*.json"))}
    commits = {
        (name, result.get("commit"))
        for name, document in found.items()
        for result in (document.get("machine", document), *document.get("results", ()))
    }
    changed = {(name, commit) for name, commit in commits if commit is not None and commit.endswith("+")}
    assert not changed


@pytest.mark.parametrize(
    ("commit", "others", "reason"),
    [("abc", 0.0, None), ("abc+", 0.0, "differs from its commit"), ("abc", 0.5, "busy")],
)
def test_a_result_is_kept_where_it_could_be_measured_again(commit: str, others: float, reason: str | None):
    document = make_document(share_used_by_others=others)
    document["machine"]["commit"] = commit
    found = report.why_not_kept(document)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(("others", "kept"), [([0.1, None, 0.3], 0.3), ([None], None)])
def test_what_others_used_is_the_most_of_any_part_and_unknown_where_no_part_knows(others, kept):
    options = argparse.Namespace(commit="abc")
    document = documents.document_of("made up", options, {}, idle=None, others=others, results=[])
    assert document["share_used_by_others"] == kept


def test_the_table_of_masks_has_what_auto_takes_and_what_it_adds_to_a_step():
    taken = {"grammar": ".{1,4}", "library": "llguidance", "chosen": True, "compiled_ms": 2.0, "median_ms": 0.15}
    passed_over = taken | {"library": "xgrammar", "chosen": False}
    used = {"grammar": "using masks on logits", "median_ms": 0.4}
    masks = make_document(results=[taken, passed_over, used])
    masks["settings"]["batch_size"] = 16
    steps = make_document(results=[{"grammar": ".{1,4}", "free_ms": 17.0, "added_ms": 0.8, "num_steps": 9}])
    table = tables.masks_table(masks, steps)
    assert "0.80 ms of 17.0" in table
    assert "xgrammar" not in table
    assert "takes 0.40 ms" in table
    assert "added to a step" not in tables.masks_table(masks, None)


def test_the_table_of_a_served_model_has_a_row_for_each_load():
    load = {"prompts": 64, "at_a_time": 32, "tokens_in": 512, "tokens_out": 128, "output_throughput": 12218.6}
    times = {"median_ttft_ms": 80.0, "p99_ttft_ms": 119.0, "median_tpot_ms": 2.0, "p99_tpot_ms": 2.35}
    document = make_document(results=[load | times])
    document["settings"] = {"model": "qwen3-0.6b", "dummy": True}
    table = tables.served_table(document)
    assert "12,219" in table
    assert "80 ms (119)" in table
    assert "dummy weights of qwen3-0.6b's layers" in table


def test_a_step_of_streams_ends_when_the_last_of_them_has_its_token():
    arrivals = [[0.0, 1.0, 2.0, 3.5], [0.5, 1.2, 2.5, 3.0]]
    assert http_overhead.step_seconds(arrivals, warm_up=1, steps=2) == pytest.approx([1.3, 1.0])
    with pytest.raises(RuntimeError, match="a stream had 4 events"):
        http_overhead.step_seconds(arrivals, warm_up=2, steps=2)


def test_the_table_of_a_watched_server_has_what_watching_adds_and_what_counting_takes():
    result = {
        "batch_size": 16,
        "sides": {"unwatched": {"median_ms": 100.0}, "watched": {"median_ms": 100.5}},
        "added": {"median": 0.005, "lowest_turn": -0.01, "highest_turn": 0.02},
        "added_cpu_ms": {"server": 0.25, "engine": 0.05},
        "apart_us": {"server": 30.0, "engine": 10.0},
        "share_apart": 0.0004,
    }
    document = make_document(benchmark="watched", results=[result])
    document["settings"]["watch"] = ["log", "metrics"]
    table = tables.watched_table(document)
    assert "0.5% (-1.0% - 2.0%)" in table
    assert "0.25 ms in the server, 0.05 ms in the engine" in table
    assert "40 us, 0.04%" in table
    assert "Watched: log, metrics." in table


def test_the_busy_table_sets_two_threads_beside_one():
    def sides(one, two, spinning):
        names = ("one thread", "two threads", "two threads that always spin")
        return {name: {"median_ms": each} for name, each in zip(names, (one, two, spinning), strict=True)}

    results = [{"programs": 0, "sides": sides(20.0, 10.0, 9.9)}, {"programs": 2, "sides": sides(40.0, 44.0, 900.0)}]
    table = tables.busy_table(make_document(benchmark="busy", results=results))
    assert "1.10x the time" in table
    assert "0.99 times the speed" in table
