"""What does not go with stages, and what their ranks have: settled before a process is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine
from atom_core.config import ConfigError, EngineArgs, EngineConfig, resolve_config
from atom_core.worker.cache.pages import plan_pages
from atom_core.worker.ranks.meeting import Meeting, StoreFile, on_this_host
from atom_kernels.platform import Platform, detect_platform
from atom_models import BuildContext, CheckpointError, build_model, mixer_layers, open_checkpoint
from atom_models.fallback.admission import FallbackRefusedError
from atom_models.groups import Groups, Stage


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("atom_core.executor.processes.executor.RankProcesses", refuse)


def resolved(model: Path, platform: Platform | None = None, **settings: Any) -> EngineConfig:
    args = EngineArgs(model=str(model), **settings)
    return resolve_config(args, open_checkpoint(model), platform or detect_platform())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data_parallel_size": 2}, "data_parallel_size 2"),
        ({"method": "mtp"}, "speculation by mtp"),
        ({"draft_model": "any"}, "speculation by draft_model"),
        ({"kv_offload_memory": "1GiB"}, "kv_offload_memory"),
        ({"cudagraph_mode": "full"}, "cudagraph_mode full"),
        ({"cudagraph_mode": "full-and-piecewise"}, "cudagraph_mode full-and-piecewise"),
    ],
)
def test_what_does_not_go_with_stages_is_named(settings: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=f"^pipeline_parallel_size is 2, and {says} does not go with it: leave out"):
        EngineArgs(model="any", pipeline_parallel_size=2, **settings)
    EngineArgs(model="any", **settings)


@pytest.mark.parametrize("settings", [{"method": "ngram"}, {"method": "suffix"}, {"cudagraph_mode": "piecewise"}])
def test_guesses_by_tokens_and_pieces_go_with_stages(settings: dict[str, Any]):
    assert EngineArgs(model="any", pipeline_parallel_size=2, **settings).pipeline_parallel_size == 2


def test_more_stages_than_layers_are_refused_before_a_process_starts(tiny_llama: Path):
    with pytest.raises(CheckpointError, match="num_hidden_layers is 2, and 3 pipeline stages need a layer each"):
        LLMEngine(str(tiny_llama), pipeline_parallel_size=3, dtype="float32", num_kv_blocks=16)


def test_layers_of_transformers_are_refused_before_a_process_starts(tiny_llama: Path):
    with pytest.raises(FallbackRefusedError, match="they are not split, and 2 stages are asked for"):
        LLMEngine(str(tiny_llama), pipeline_parallel_size=2, model_impl="transformers")


def test_more_stages_than_gpus_are_refused(tiny_llama: Path):
    platform = replace(Platform.nvidia("sm_90"), num_devices=3)
    says = "pipeline_parallel_size is 2 with tensor_parallel_size 2: 4 ranks; each rank needs a GPU of its own.* use 3"
    with pytest.raises(ConfigError, match=says):
        resolved(tiny_llama, platform, tensor_parallel_size=2, pipeline_parallel_size=2)


def test_stages_on_gpus_are_captured_in_pieces(tiny_llama: Path):
    platform = replace(Platform.nvidia("sm_90"), num_devices=2)
    whole, staged = (resolved(tiny_llama, platform, pipeline_parallel_size=size).compile for size in (1, 2))
    assert (whole.graph_mode, staged.graph_mode) == ("full-and-piecewise", "piecewise")


def test_all_ranks_share_the_cores(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    platform = replace(detect_platform(), num_cores=8)
    config = resolved(tiny_llama, platform, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert (config.parallel.num_threads, config.parallel.num_ranks, config.scheduler.num_stages) == (2, 4, 2)


def test_the_first_rank_of_the_last_stage_answers():
    sizes = [(2, 1), (2, 2), (4, 2), (6, 3)]
    meetings = [Meeting(on_this_host(size), StoreFile(""), count) for size, count in sizes]
    assert [meeting.first_that_samples for meeting in meetings] == [0, 1, 2, 4]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
def test_stages_have_the_same_groups_and_share_out_the_bytes_of_a_token(
    family: str, tiny_family: Callable[[str], Path]
):
    def layers(stage: Stage) -> dict[str, Any]:
        return dict(mixer_layers(build_model(checkpoint, BuildContext(groups=Groups(stage=stage)))))

    checkpoint = open_checkpoint(tiny_family(family))
    whole = plan_pages(layers(Stage()), 512)
    parts = [whole.of_layers(layers(Stage(index, 2))) for index in range(2)]
    assert [part.specs for part in parts] == [whole.specs] * 2
    assert sum(part.token_bytes for part in parts) == whole.token_bytes
    assert sum(part.slot_bytes for part in parts) == whole.slot_bytes
    for group, *of_parts in zip(whole.groups, *(part.groups for part in parts), strict=True):
        assert sum((part.layers for part in of_parts), ()) == group.layers
        assert all(len(part.layers) <= len(pages.places) for part, pages in zip(of_parts, parts, strict=True)) or (
            group.spec.in_slots
        )
