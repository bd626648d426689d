"""Charts of `atom bench`: of a run while it is measured, and of runs that were saved."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree

import pytest

from atom_server.bench.metrics import summarize
from atom_server.bench.outcome import BenchError, Outcome
from atom_server.bench.pages.charts import draw_run, draw_runs
from atom_server.cli.main import main

pytest.importorskip("matplotlib")
LOAD = "--num-prompts 6 --random-input-len 20 --random-output-len 5 --ignore-eos"


@pytest.fixture
def texts(monkeypatch):
    """``texts(path)``: what a chart says; its letters are not turned into outlines."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")

    def read(path) -> str:
        return "\n".join(element.text or "" for element in xml.etree.ElementTree.parse(path).iter() if element.text)

    return read


def outcome(sent: float, ttft: float, *gaps: float) -> Outcome:
    return Outcome(ttft, ttft + sum(gaps), list(gaps), 8, len(gaps) + 1, sent=sent)


def result(concurrency: int, rate: float, model="tiny"):
    latencies = {
        f"{kind}_{name}_ms": rate / 10 for name in ("ttft", "tpot") for kind in ("median", "mean", "p90", "p99")
    }
    return {"model_id": model, "max_concurrency": concurrency, "output_throughput": rate, **latencies}


def test_a_run_is_drawn_with_its_percentiles(texts, tmp_path):
    outcomes = [outcome(0.1 * number, 0.010 + 0.001 * number, 0.02, 0.03) for number in range(11)]
    path = tmp_path / "run.svg"
    about = {"model_id": "tiny", **summarize(outcomes, 2.0, [99])}
    draw_run(path, [*outcomes, Outcome(error="lost")], 2.0, about)
    said = texts(path)
    assert "tiny: 16 output tokens/s, 11 requests" in said
    # Times to the first token are 10, 11, ... 20 ms.
    for text in (
        "p50 15 ms",
        "p90 19 ms",
        "p99 19.9 ms",
        "time to first token",
        "end-to-end latency",
        "requests running",
    ):
        assert text in said


def test_a_run_in_which_everything_failed_is_drawn_too(texts, tmp_path):
    outcomes = [Outcome(error="lost")]
    draw_run(tmp_path / "run.svg", outcomes, 1.0, {"model_id": "tiny", **summarize(outcomes, 1.0, [99])})
    assert "0 requests" in texts(tmp_path / "run.svg")


def test_saved_runs_are_drawn_by_throughput_a_line_for_each_model(texts, tmp_path):
    files = []
    for number, saved in enumerate([result(4, 90), result(1, 40), result(1, 70, "other")]):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(saved))
    path = tmp_path / "runs.svg"
    assert main(["bench", "plot", *map(str, files), "--plot", str(path)]) == 0
    said = texts(path)
    for text in ("tiny, median", "tiny, p99", "other, median", "time per output token", "output tokens/s"):
        assert text in said


def test_the_knee_of_a_sweep_is_marked_in_both_charts(texts, tmp_path):
    path = tmp_path / "runs.svg"
    draw_runs(path, [result(4, 90), result(8, 120)], at_knee=1)
    assert texts(path).splitlines().count("knee") == 2
    draw_runs(path, [result(4, 90), result(8, 120)])
    assert "knee" not in texts(path)


def test_a_run_of_the_server_is_drawn_while_it_is_measured(server, tmp_path, capsys):
    path = tmp_path / "run.png"
    assert main(["bench", "serve", "--base-url", server.url, *LOAD.split(), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {path}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["serve", "--plot", "run.gif"], "ends with .png, .svg, .pdf"),
        (["plot"], "name the results"),
        (["plot", "none.json"], "none.json: No such file"),
    ],
)
def test_what_cannot_be_drawn_is_told_before_anything_is_measured(arguments, reason, capsys):
    assert main(["bench", *arguments]) == 1
    assert reason in capsys.readouterr().err


def test_a_file_that_is_no_result_is_told(tmp_path, capsys):
    path = tmp_path / "x.json"
    for text in ("{}", "{"):
        path.write_text(text)
        assert main(["bench", "plot", str(path), "--plot", str(tmp_path / "x.svg")]) == 1
        assert "result" in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "serve", "--plot", "run.svg"]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


def test_runs_without_a_common_percentile_show_their_means(texts, tmp_path):
    saved = {key: value for key, value in result(1, 40).items() if not key.startswith("p")}
    draw_runs(tmp_path / "runs.svg", [saved])
    assert "tiny, mean" in texts(tmp_path / "runs.svg")
    with pytest.raises(BenchError):
        draw_runs(tmp_path / "runs.svg", [])
