"""`atom bench dashboard`: one page of saved results, on which regressions are marked."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from atom_server.bench.dashboard.curve import curve
from atom_server.bench.dashboard.runs import read_results
from atom_server.bench.dashboard.trends import trends
from atom_server.cli.main import main

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def result(date: str, throughput: float, *, ttft: float = 50.0, tpot: float = 5.0, **more: Any) -> dict[str, Any]:
    counts = {"completed": 10, "total_input_tokens": 5120, "total_output_tokens": 1280, "max_concurrency": 8}
    latencies = {"median_ttft_ms": ttft, "median_tpot_ms": tpot}
    about = {"date": date, "model_id": "m<1>", "backend": "vllm", "output_throughput": throughput}
    return about | counts | latencies | more


@pytest.fixture
def write(tmp_path):
    def write_all(*documents: dict[str, Any]) -> list[str]:
        paths = [tmp_path / f"{number}.json" for number in range(len(documents))]
        for path, document in zip(paths, documents, strict=True):
            path.write_text(json.dumps(document))
        return list(map(str, paths))

    return write_all


def regressions(paths: list[str]) -> list[list[str]]:
    runs = read_results([Path(path) for path in paths]).runs
    [changes] = trends(runs).values()
    return [change.regressions for change in changes]


def test_less_throughput_by_five_percent_or_more_latency_by_ten_is_a_regression(write):
    slower = [result("20260101-000000", 1000), result("20260102-000000", 950), result("20260103-000000", 903)]
    assert regressions(write(*slower)) == [[], ["throughput"], []]
    late = [result("20260101-000000", 1000), result("20260102-000000", 1000, ttft=55.0, tpot=5.4)]
    assert regressions(write(*late)) == [[], ["ttft"]]


def test_runs_are_compared_in_order_of_time_whatever_the_order_of_files(write):
    assert regressions(write(result("20260102-000000", 900), result("20260101-000000", 1000))) == [[], ["throughput"]]


def test_the_page_marks_what_became_worse_and_holds_the_files(write, tmp_path, capsys):
    paths = write(result("20260101-000000", 1000, commit="aaa1111"), result("20260102-000000", 800, commit="bbb2222"))
    page = tmp_path / "page.html"
    (tmp_path / "t.json.gz").write_bytes(b"")
    command = ["bench", "dashboard", *paths, "--output", str(page), "--trace", str(tmp_path / "t.json.gz")]
    assert main(command) == 0
    assert "regression: throughput of m<1>, vllm, 8 at once, 512 in, 128 out" in capsys.readouterr().out
    text = page.read_text()
    assert re.findall(r'<td class="bad">([^<]*)</td>', text) == ["-20.0%"]
    assert "bbb2222" in text
    assert "m<1>" not in text
    [first, _] = re.findall(r"base64,([\w+/=]+)", text)
    assert json.loads(base64.b64decode(first))["commit"] == "aaa1111"
    assert 'href="t.json.gz"' in text
    assert main([*command, "--fail-on-regression"]) == 1


def test_charts_are_well_formed_and_have_a_dot_for_each_run(write, tmp_path):
    page = tmp_path / "page.html"
    paths = write(result("20260101-000000", 1000), result("20260102-000000", 800))
    assert main(["bench", "dashboard", *paths, "--output", str(page)]) == 0
    charts = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        root = xml.etree.ElementTree.fromstring(chart)
        assert len([element for element in root.iter() if element.tag.endswith("circle")]) == 2


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (24100.0, ["0", "5,000", "10,000", "15,000", "20,000"]),
        (5.42, ["0", "2", "4"]),
        (0.9, ["0", "0.2", "0.4", "0.6", "0.8"]),
    ],
)
def test_axes_have_round_numbers(most, labels):
    chart = curve({"line": [(most / 1.05, 1.0, "")]}, x_title="x", y_title="y")
    assert re.findall(r'y="326" text-anchor="middle">([^<]*)<', chart) == labels


def test_results_that_the_repository_keeps_are_shown(tmp_path):
    kept = [*RESULTS.glob("served-*.json"), *RESULTS.glob("accuracy-weights-*.json")]
    page = tmp_path / "page.html"
    assert main(["bench", "dashboard", *map(str, kept), "--output", str(page)]) == 0
    text = page.read_text()
    assert "qwen3-0.6b on NVIDIA H100" in text
    assert "perplexity" in text


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"results": [{"output_throughput": 1}]}'])
def test_a_file_that_is_no_result_is_named(tmp_path, capsys, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["bench", "dashboard", str(path), "--output", str(tmp_path / "page.html")]) == 1
    assert "x.json is no result" in capsys.readouterr().err
