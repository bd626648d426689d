"""`atom trace`: the breakdown of a trace, compared with counts of the trace by other means."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atom_server.cli.main import main
from atom_server.traces import Roofline, TraceError, break_down, find_roofline, read_events, read_trace
from atom_server.traces.work import Step, captured_graphs, steps_of

STEP = "decode[requests=1 tokens=1]"


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def layer_events(number: int, ts: float, launch: str) -> list[dict[str, Any]]:
    """Two modules of a layer, each of which launches one kernel; layer n's kernels take 10 + n and 20 + n us."""
    events = [event("user_annotation", f"model.layers.{number}", ts, 90)]
    for place, part in enumerate(("self_attn.qkv_proj", "mlp")):
        at, correlation = ts + 40 * place, 10 * number + place
        events += [
            event("user_annotation", f"model.layers.{number}.{part}", at, 30),
            event("cuda_runtime", launch, at + 5, 3, correlation=correlation),
            # It runs later, and maybe after the mark has ended.
            event("kernel", f"{part}_kernel", at + 500, 10 * (place + 1) + number, correlation=correlation, stream=7),
        ]
    return events


def eager_trace(launch: str = "cudaLaunchKernel", num_layers: int = 3) -> list[dict[str, Any]]:
    events = [event("user_annotation", STEP, 0, 1000), event("cuda_runtime", launch, 990, 2, correlation=999)]
    events.append(event("kernel", "lm_head_kernel", 1600, 7, correlation=999))
    events.append(event("gpu_user_annotation", "model.layers.0", 0, 9000))  # told twice otherwise
    for number in range(num_layers):
        events += layer_events(number, 10 + 100 * number, launch)
    return events


def graph_trace(num_layers: int = 2) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A step that replays a graph of each layer, and the trace of their capture, in which nothing runs."""
    captured = [event("user_annotation", "graphs 3", 0, 900)]
    replayed = [event("user_annotation", STEP, 0, 100), event("user_annotation", "graphs 3", 1, 90)]
    for number in range(num_layers):
        at = 10 + 100 * number
        captured.append(event("cuda_runtime", "cudaStreamBeginCapture_v10000", at - 1, 0.5, correlation=1))
        captured += [each for each in layer_events(number, at, "cudaLaunchKernel") if each["cat"] != "kernel"]
        captured.append(event("cuda_runtime", "cudaStreamEndCapture_v10000", at + 95, 0.5, correlation=2))
        replayed.append(event("cuda_runtime", "cudaGraphLaunch", 5 + 10 * number, 3, correlation=5 + number))
        for place in range(2):
            kernel = f"kernel_{2 * number + place}"
            replayed.append(event("kernel", kernel, 50 + 20 * place + 50 * number, 10, correlation=5 + number))
    return replayed, captured


def write(path: Path, events: list[dict[str, Any]], **more: Any) -> Path:
    text = json.dumps({"traceEvents": events} | more)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    "launch", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel"]
)
def test_kernels_belong_to_the_module_that_launched_them(launch):
    found = break_down(steps_of(eager_trace(launch)), "decode", 1)
    assert [(row.module, row.kernel, row.microseconds) for row in found.rows] == [
        ("self_attn.qkv_proj", "self_attn.qkv_proj_kernel", 11),
        ("mlp", "mlp_kernel", 21),
    ]
    assert [row.mean_microseconds for row in found.rows] == [11, 21]
    assert found.rows[0].share == pytest.approx(11 / 32)
    assert found.step_microseconds == sum(10 + 20 + 2 * number for number in range(3)) + 7
    assert found.attributed == pytest.approx(1 - 7 / found.step_microseconds)


def test_kernels_of_a_graph_belong_to_the_modules_that_were_captured():
    replayed, captured = graph_trace()
    with pytest.raises(TraceError, match="--capture-trace"):
        break_down(steps_of(replayed), "decode", 0)
    found = break_down(steps_of(replayed, captured_graphs(captured)), "decode", 1)
    assert [(row.module, row.kernel) for row in found.rows] == [("self_attn.qkv_proj", "kernel_2"), ("mlp", "kernel_3")]
    assert found.attributed == 1.0


def test_a_graph_that_was_captured_otherwise_says_nothing():
    replayed, captured = graph_trace()
    [graphs] = captured_graphs(captured).values()
    assert [len(graph.modules) for graph in graphs] == [2, 2]
    others = [each | {"name": each["name"].replace("graphs 3", "graphs 4")} for each in captured]
    more = [*replayed, *(event("kernel", "one_more", 900, 1, correlation=number) for number in (5, 6))]
    for step_events, capture in ((replayed, others), (more, captured)):
        [step] = steps_of(step_events, captured_graphs(capture))
        assert {work.module for work in step.work} == {""}


def test_what_runs_between_two_graphs_belongs_to_the_module_that_ended_the_first():
    replayed, captured = graph_trace()
    attention = "model.layers.0.attn"
    captured.append(event("user_annotation", attention, 103, 3))  # around the end of the first capture
    replayed.append(event("cuda_runtime", "cudaLaunchKernel", 9, 1, correlation=8))
    replayed.append(event("kernel", "attention", 99, 7, correlation=8))
    [step] = steps_of(replayed, captured_graphs(captured))
    assert [work.module for work in step.work if work.kernel == "attention"] == [attention]


def test_graphs_of_as_many_kernels_are_told_apart_by_their_order():
    replayed, captured = graph_trace(num_layers=3)
    [step] = steps_of(replayed, captured_graphs(captured))
    assert [work.module for work in step.work if work.module.endswith("mlp")] == [
        f"model.layers.{number}.mlp" for number in range(3)
    ]


# A device that reads 1000 bytes and multiplies 4000 numbers in a microsecond.
MATRIX = {"bytes": 4000, "numbers": 2000, "experts": [1, 1], "is_head": False}


def make_roofline(**changes: Any) -> Roofline:
    return Roofline("test", 1e9, {16: 8e9}, {"model.layers.1.mlp": MATRIX | changes})


@pytest.mark.parametrize(
    ("changes", "tokens", "least"),
    [
        ({}, 1, 4.0),  # reads 4000 bytes
        ({}, 100, 50.0),  # multiplies 100 x 2000 numbers
        ({"is_head": True}, 100, 4.0),
        ({"experts": [1, 4]}, 1, 1.0),
        ({"experts": [2, 4]}, 2, 3.0),  # of four experts two tokens of two choose three
    ],
)
def test_the_least_time_of_a_module_is_that_of_reads_or_products(changes, tokens, least):
    step = Step("decode", 0.0, 1, tokens)
    roofline = make_roofline(**changes)
    assert roofline.least_microseconds(step, "model.layers.1.mlp") == pytest.approx(least)
    assert roofline.least_microseconds(step, "model.layers.1.norm") is None


def test_a_module_reaches_its_least_time_over_what_its_kernels_took():
    found = break_down(steps_of(eager_trace()), "decode", 1, make_roofline())
    assert [row.roofline for row in found.rows] == [None, pytest.approx(4 / 21)]


def test_the_device_of_a_trace_is_taken_unless_another_one_is_asked_for(tmp_path, capsys, monkeypatch):
    pytest.importorskip("openpyxl")
    monkeypatch.chdir(tmp_path)
    about = {"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "atom_matrices": {"model.layers.1.mlp": MATRIX}}
    path = write(tmp_path / "t.json", eager_trace(), **about)
    trace = read_trace(path)
    assert [find_roofline(asked, trace.devices, trace.matrices).name for asked in (None, "mi300x")] == [
        "H100",
        "MI300X",
    ]
    assert find_roofline(None, ("some GPU",), trace.matrices) is None
    assert main(["trace", str(path), "--layer", "1", "--json", "found.json"]) == 0
    document = json.loads(Path("found.json").read_text())
    assert (document["devices"], document["machine"].keys()) == (["NVIDIA H100 80GB HBM3"], {"commit", "date"})
    [phase] = document["phases"]
    assert (phase["phase"], phase["attributed"]) == ("decode", pytest.approx(1 - 7 / phase["step_microseconds"]))
    [shown] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mlp")]
    assert shown.endswith("0%")
    assert main(["trace", str(path), "--layer", "1", "--on", "H9"]) == 1
    assert "the rates of MI300X" in capsys.readouterr().err
    assert main(["trace", str(write(path, eager_trace())), "--layer", "1", "--on", "H100"]) == 1
    assert "does not say what modules multiply with" in capsys.readouterr().err


def test_the_middle_step_of_a_phase_is_taken():
    events = []
    for place, microseconds in enumerate((9, 1, 5)):
        at = 1000 * place
        events += [
            event("user_annotation", STEP, at, 100),
            event("user_annotation", "model.layers.0", at + 1, 90),
            event("cuda_runtime", "cudaLaunchKernel", at + 2, 1, correlation=place),
            event("kernel", "k", at + 50, microseconds, correlation=place),
        ]
    found = break_down(steps_of(events), "decode", 0)
    assert (found.num_steps, found.layer_microseconds) == (3, 5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "is cut short: its compressed data ends too early"),
        (b'{"traceEvents": [{"ph": "X"', "is cut short: its JSON ends too early"),
        (b"{} x", "is no JSON"),
        (b"{}", "is no trace of torch's profiler"),
        (b'{"traceEvents": []}', "has no step of the engine: record it with --mark-trace"),
    ],
    ids=["cut compression", "cut JSON", "text", "no trace", "no step"],
)
def test_a_file_that_is_no_whole_trace_is_told_in_one_line(tmp_path, capsys, content, reason):
    pytest.importorskip("openpyxl")
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    assert main(["trace", str(path)]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1


def test_a_layer_out_of_range_is_told_with_the_range(tmp_path, capsys):
    pytest.importorskip("openpyxl")
    path = write(tmp_path / "t.json", eager_trace())
    assert main(["trace", str(path), "--layer", "3"]) == 1
    assert "--layer 3: the decode step has the layers 0 to 2" in capsys.readouterr().err


def test_without_openpyxl_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert main(["trace", "t.json"]) == 1
    assert "pip install openpyxl" in capsys.readouterr().err


def read_back(path: Path) -> list[dict[str, Any]]:
    """The rows of the layer's sheet, by the names of their columns, without the sum."""
    from openpyxl import load_workbook

    sheet: Any = load_workbook(path).worksheets[0]
    names, *rows = sheet.iter_rows(values_only=True)
    found = [dict(zip(names, row, strict=True)) for row in rows[:-1]]
    for before, row in itertools.pairwise(found):
        row["cpu_module"] = row["cpu_module"] or before["cpu_module"]  # merged cells
    return found


def test_workbooks_of_a_recorded_trace_equal_a_count_of_it(tiny_llama, tmp_path, monkeypatch, capsys):
    """On a CPU a module's kernels and what lies between them are the time of its mark: a count by another rule."""
    pytest.importorskip("openpyxl")
    monkeypatch.chdir(tmp_path)
    flags = "--dtype float32 --num-threads 1 --num-kv-blocks 64 --max-model-len 64 --input-length 24 --output-length 4"
    assert main(["profile", "--model", str(tiny_llama), "--mark-trace", *flags.split()]) == 0
    [trace] = Path("profiler_traces/rank_0").glob("*.pt.trace.json.gz")
    assert str(trace) in capsys.readouterr().out
    assert trace.name.startswith(tiny_llama.name)
    assert main(["trace", str(trace), "--layer", "1", "--plot", "modules.svg"]) == 0
    matrices = read_trace(trace).matrices
    gate_up = matrices["model.layers.1.mlp.gate_up_proj"]
    assert gate_up["bytes"] == 4 * gate_up["numbers"]
    assert matrices["lm_head"]["is_head"] is True
    events = read_events(trace)
    for phase, tokens in (("prefill", 24), ("decode", 1)):
        rows = read_back(Path(f"{phase}_breakdown.xlsx"))
        step = next(
            step
            for step in events
            if step["name"].startswith(f"{phase}[") and abs(layer_of(events, step) - sum_of(rows)) < 0.01
        )
        assert step["name"].endswith(f"tokens={tokens}]")
        for part in ("self_attn.qkv_proj", "mlp.down_proj"):
            own = [row for row in rows if row["cpu_module"] == part]
            assert sum_of(own) == pytest.approx(layer_of(events, step, f".{part}"), abs=0.01)
            assert own[0]["sum_us"] == pytest.approx(sum_of(own))
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert max(row["num_layers"] for row in rows) == 2
    said = capsys.readouterr().out
    assert "written: prefill_breakdown.xlsx" in said
    assert "self_attn.qkv_proj" in said
    assert Path("modules.svg").exists()


def sum_of(rows: list[dict[str, Any]]) -> float:
    return sum(row["duration_us"] for row in rows)


def layer_of(events: list[dict[str, Any]], step: dict[str, Any], part: str = "") -> float:
    """How long the marks of layer 1, or of a part of it, last within a step."""
    return sum(
        mark["dur"]
        for mark in events
        if mark["name"].endswith(f"layers.1{part}")
        and mark["cat"] == "user_annotation"
        and step["ts"] <= mark["ts"] < step["ts"] + step["dur"]
    )
