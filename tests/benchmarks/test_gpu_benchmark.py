"""The GPU benchmark asks of every engine the same, and compares medians over all turns."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import chart, gpu, report
from benchmarks.gpu import engines, tables
from benchmarks.gpu.models import MODELS, write_config
from benchmarks.gpu.workloads import Sizes, busy_share, measure, random_prompt

SIZES = Sizes(batch_sizes=(2,), contexts=(16,), prompts=(32,), repeats=1)


class Recorder:
    """An engine whose every token takes a tenth of a millisecond."""

    name, version = "atom", "1"

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[int], float]] = []

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        self.calls.append(([len(prompt) for prompt in prompts], list(max_tokens), temperature))
        time.sleep(max(max_tokens) * 1e-4)


def test_the_offline_workload_is_the_published_one() -> None:
    engine = Recorder()
    figures = list(measure(engine, ["offline"], SIZES))
    lengths, tokens, temperature = engine.calls[0]
    assert (len(lengths), sum(tokens), temperature) == (256, 133_966, 0.6)
    assert figures[0].unit == "tokens/s"
    assert engine.calls[0] == engine.calls[1]


def test_a_decode_step_is_the_difference_of_two_lengths() -> None:
    engine = Recorder()
    [figure] = measure(engine, ["greedy"], SIZES)
    assert [(lengths, tokens[0], temperature) for lengths, tokens, temperature in engine.calls] == [
        ([16, 16], 8, 0.0),
        ([16, 16], 136, 0.0),
        ([16, 16], 8, 0.0),
    ]
    assert figure.values[0] == pytest.approx(0.1, rel=0.5)


def test_prompts_of_a_warm_prefix_share_their_beginning() -> None:
    engine = Recorder()
    figures = list(measure(engine, ["prefix"], SIZES))
    assert [figure.figure.rpartition(", ")[2] for figure in figures] == ["cold", "warm"]
    assert engine.calls[1] == ([4224] * 64, [128] * 64, 0.6)


def test_a_side_that_stops_early_is_an_error_and_no_figure() -> None:
    with pytest.raises(RuntimeError, match="asked for 20 tokens and got 18"):
        engines._check([10, 8], [10, 10])


def test_ours_is_compared_by_the_medians_of_all_turns() -> None:
    def figure(engine: str, turn: int, values: list[float]) -> dict[str, object]:
        return {"model": "m", "turn": turn, "engine": engine, "version": "1", "figure": "step", "unit": "ms",
                "values": values}  # fmt: skip

    [entry] = gpu.summarize([figure("atom", 0, [1.0, 2.0]), figure("vllm", 1, [4.0]), figure("atom", 2, [3.0])])
    assert entry["engines"]["atom"]["range"] == [1.0, 3.0]
    assert entry["ours_over_peer"] == 0.5
    document = {
        "machine": {"device": "GPU", "versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-01 00:00 UTC"},
        "settings": {"dtype": "bfloat16"},
        "copy_tb_per_s": 3.0,
        "matmul_tflop_per_s": 800.0,
        "results": [entry],
    }
    assert "| m     | step   | 2.00 ms (1.00 - 3.00) | 4.00 ms (4.00 - 4.00) | 0.50" in tables.gpu_table(document)


@pytest.mark.parametrize("name", MODELS)
def test_every_shape_is_a_model_that_this_version_builds(name: str, tmp_path) -> None:
    from atom_models import open_checkpoint
    from atom_models.architectures.registry import find_architecture

    config = open_checkpoint(write_config(name, tmp_path, num_layers=2)).config
    assert config["num_hidden_layers"] == 2
    assert find_architecture(config["architectures"][0]).__name__ == config["architectures"][0]


def test_random_prompts_stay_in_small_vocabularies() -> None:
    assert max(random_prompt(random.Random(0), 1000)) <= 10000


def test_kernels_that_overlap_count_once() -> None:
    assert busy_share([(0, 4), (1, 3), (3, 5), (8, 10)]) == 0.7


def test_the_page_of_gpus_shows_the_saved_results() -> None:
    text = (chart.ROOT / "docs" / "gpu.md").read_text()
    saved = [tables.gpu_table(document) for document in report.load_all("gpu")]
    assert report.fill_marks(text, saved) == text, "run `python -m benchmarks chart`"


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
