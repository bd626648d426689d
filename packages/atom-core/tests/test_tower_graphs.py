"""Towers in graphs: pictures have the features that they have without, whatever a graph ran on before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_core.worker.cache.device_memory import GRAPH_BYTES, tower_graph_bytes
from atom_core.worker.graphs.plan import GraphsToCapture
from atom_core.worker.vision import tower_graphs
from atom_core.worker.vision.tower_graphs import TowerGraphs, tower_sizes
from atom_models import load_model
from atom_models.vision.tower import VisionTower
from repeated_work import Repeated
from tiny_dual import make_dual
from tiny_pictures import picture

pytest.importorskip("transformers")

SEEING = ["qwen3_vl", "qwen2_5_vl", "qwen3_5", "mistral3", "kimi_k25", "gemma3-seeing"]
SIZES = (16, 32, 64, 128, 256, 512)


@pytest.fixture(scope="module", params=[*SEEING, "clip", "siglip"])
def tower(
    request: pytest.FixtureRequest, tiny_family: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> VisionTower:
    if request.param in SEEING:
        folder = tiny_family(request.param)
    else:
        folder = tmp_path_factory.mktemp(request.param)
        make_dual(request.param, folder)
    return load_model(folder, "float32", progress=False).model.vision


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tower_graphs, "SIZES", SIZES)
    monkeypatch.setattr(tower_graphs, "ROWS_OF_RUN", 4)
    Repeated.reset()
    yield
    Repeated.reset()


def captured(tower: VisionTower, most_rows: int = 512) -> TowerGraphs:
    graphs = TowerGraphs(tower, tower_sizes(tower, most_rows), Repeated)
    while graphs.capture_next():
        pass
    return graphs


def shown(tower: VisionTower, *sizes: tuple[int, int]) -> list[torch.Tensor]:
    return [picture(*tower.spec.fitted(*size), seed) for seed, size in enumerate(sizes)]


def assert_same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_pictures_have_the_features_that_they_have_without_graphs(tower: VisionTower):
    graphs = captured(tower)
    assert Repeated.captured == len(tower_sizes(tower, 512))
    batches = [[(30, 50)], [(40, 24), (24, 24), (30, 50)], [(24, 24)], [(24, 24), (40, 24)]]
    for number, sizes in enumerate(batches, start=1):
        pictures = shown(tower, *sizes)
        assert_same(graphs.encode(pictures), tower.encode(pictures))
        assert Repeated.replayed == number


def test_parts_of_videos_have_the_features_that_they_have_without_graphs(tower: VisionTower):
    if tower.spec.video is None:
        return
    [*chunk, still] = shown(tower, *[(24, 24)] * tower.spec.video.picture_frames, (40, 24))
    pictures = [torch.stack(chunk), still, torch.stack(chunk[: tower.spec.video.least_frames])]
    graphs = captured(tower)
    assert_same(graphs.encode(pictures), tower.encode(pictures))
    assert Repeated.replayed == 1


def test_what_a_graph_gave_is_kept_while_it_runs_again(tower: VisionTower):
    graphs, pictures = captured(tower), shown(tower, (24, 24), (24, 24))
    first = graphs.encode(pictures[:1])
    graphs.encode(pictures[1:])
    assert_same(first, tower.encode(pictures[:1]))


def test_rows_behind_a_step_change_nothing(tower: VisionTower):
    graphs, pictures = captured(tower), shown(tower, (24, 24))
    assert graphs._buffers is not None
    with torch.inference_mode():
        graphs._buffers.rows.fill_(float("nan"))
    assert_same(graphs.encode(pictures), tower.encode(pictures))


def test_every_row_of_a_graph_is_in_a_run(tower: VisionTower):
    """Attention writes no row of no run: layers behind it would read what lay there before."""
    graphs, size = captured(tower), min(tower_sizes(tower, 512))
    graphs.encode(shown(tower, (1, 1)))
    for starts in graphs._views(size).starts:
        assert starts[-1] == size
        assert (starts.diff() >= 0).all()


def test_more_rows_than_any_graph_has_run_without(tower: VisionTower):
    pictures = shown(tower, (24, 24), (24, 24))
    num_rows = len(tower.smallest_step().rows)
    graphs = captured(tower, most_rows=num_rows)
    both = graphs.encode(pictures)
    assert Repeated.replayed == 0
    assert_same(both, tower.encode(pictures))


def test_more_runs_than_a_graph_has_room_for_take_a_larger_one_or_none(
    tower: VisionTower, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tower_graphs, "ROWS_OF_RUN", 512)
    monkeypatch.setattr(tower_graphs, "LEAST_RUNS", 1)
    graphs, pictures = captured(tower), shown(tower, (24, 24), (24, 24))
    assert_same(graphs.encode(pictures), tower.encode(pictures))
    assert Repeated.replayed == 0


def test_nothing_is_captured_after_it_was_forgotten(tower: VisionTower):
    graphs, pictures = captured(tower), shown(tower, (24, 24))
    graphs.forget()
    assert not graphs.capture_next()
    assert_same(graphs.encode(pictures), tower.encode(pictures))
    assert Repeated.replayed == 0


def test_sizes_are_whole_pictures_or_tokens_and_none_is_larger_than_a_step(tower: VisionTower):
    sizes = tower_sizes(tower, 200)
    assert sizes
    assert all(size % tower.rows_of_unit == 0 and size <= 200 for size in sizes)
    assert tower_sizes(tower, 3) == ()


def test_memory_for_graphs_is_that_of_the_largest():
    tower: Any = SimpleNamespace(rows_of_unit=4)
    plan = GraphsToCapture(tower_rows=(256, 512))
    # 100 tokens of 4 rows took 40,000 bytes: 100 bytes a row.
    assert tower_graph_bytes(plan, tower, 40_000, 100) == 2 * GRAPH_BYTES + 512 * 100
    assert tower_graph_bytes(GraphsToCapture(), tower, 40_000, 100) == 0
    assert tower_graph_bytes(plan, None, 0, 0) == 0
