"""Traces with `mark_trace`: modules are named while they are recorded, and one is written though nobody asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_core import LLMEngine, SamplingParams
from atom_core.config.sections import ProfilerConfig
from atom_core.profiling import torch_profiler
from atom_core.profiling.module_marks import ModuleMarks
from atom_core.profiling.torch_profiler import TorchProfiler

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
SMALL = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 64, "max_model_len": 64}


def names_of(path: Path) -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


def hooks_of(module: torch.nn.Module) -> int:
    return sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in module.modules())


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())


def test_a_trace_is_written_at_the_end_though_nobody_asked_for_one(tiny_llama, tmp_path):
    with LLMEngine(str(tiny_llama), torch_profiler_dir=str(tmp_path), mark_trace=True, **SMALL) as engine:
        engine.generate(["a"], SHORT, use_tqdm=False)
        assert list(tmp_path.glob("*/*")) == []
    [trace] = tmp_path.glob("rank_0/*.json.gz")
    assert trace.name.startswith(f"{tiny_llama.name}_ts_")
    names = names_of(trace)
    assert sum(name.startswith("decode[") for name in names) >= 2
    assert {"model.layers.1.self_attn.qkv_proj", "model.layers.0.mlp", "lm_head"} <= set(names)


def test_without_marks_no_trace_is_written_unless_asked_for(tiny_llama, tmp_path):
    with LLMEngine(str(tiny_llama), torch_profiler_dir=str(tmp_path), **SMALL) as engine:
        engine.generate(["a"], SHORT, use_tqdm=False)
    assert list(tmp_path.glob("*/*")) == []


def test_marks_of_modules_go_when_nobody_records():
    model = make_model()
    marks = ModuleMarks(dict(model.named_modules()))
    assert hooks_of(model) == 4
    marks.remove()
    assert hooks_of(model) == 0


def test_a_mark_ends_where_its_module_raises():
    model = make_model()
    marks = ModuleMarks(dict(model.named_modules()))
    with pytest.raises(RuntimeError):
        model(torch.zeros(3))
    assert marks._open == []
    marks.remove()


@pytest.fixture
def profiler(tmp_path: Path) -> TorchProfiler:
    made = TorchProfiler(ProfilerConfig(str(tmp_path), mark_trace=True), "rank_0", "org/some model")
    made.modules = dict(make_model().named_modules())
    return made


def test_a_trace_that_nobody_asked_for_ends_after_some_steps(profiler, monkeypatch, tmp_path):
    monkeypatch.setattr(profiler, "_steps_left", 2)
    assert profiler.count_step() is None
    path = profiler.count_step()
    assert path is not None
    assert path.name.startswith("some_model_ts_")
    assert profiler.count_step() is None
    assert profiler.close() == []
    assert torch_profiler.MOST_STEPS == 64


def test_a_trace_that_is_asked_for_takes_the_place_of_the_other(profiler):
    profiler.count_step()
    profiler.start()
    assert profiler.count_step() is None
    assert profiler.stop().exists()
    assert profiler.close() == []


class MadeOnce:
    """Stands for captured graphs: what was launched when they were made, and again at each replay."""

    def __init__(self, work: Any, in_pieces: bool) -> None:
        self.work, self.in_pieces, self.outputs, self.shared = work, in_pieces, work(), False

    def replay(self) -> None:
        self.work()

    def share(self) -> None:
        self.shared = True


def capture(work: Any, *, in_pieces: bool) -> Any:
    return MadeOnce(work, in_pieces)


def test_what_graphs_are_captured_of_is_a_trace_of_its_own(profiler):
    model = profiler.modules["0"]
    made = capture(lambda: model(torch.zeros(1, 2)), in_pieces=True)
    graphs = profiler.around_captures(lambda work, *, in_pieces: (work(), made)[1])(made.work, in_pieces=True)
    assert graphs.outputs.shape == (1, 2)
    graphs.share()
    assert made.shared
    [path] = profiler.close()
    assert path.name.startswith("capture_ts_")
    assert names_of(path) == ["graphs 0", "0"]


def test_a_replay_has_the_name_of_its_capture(profiler):
    watched = profiler.around_captures(capture)
    first, second = (watched(lambda: torch.zeros(1), in_pieces=False) for _ in range(2))
    first.replay()  # nobody records: without a mark
    profiler.start()
    second.replay()
    watched(lambda: torch.zeros(1), in_pieces=False).replay()
    first.replay()
    assert names_of(profiler.stop()) == ["graphs 1", "graphs 2", "graphs 2", "graphs 0"]


def test_captures_are_left_alone_without_marks(tmp_path):
    plain = TorchProfiler(ProfilerConfig(str(tmp_path)), "rank_0")
    assert plain.around_captures(print) is print
