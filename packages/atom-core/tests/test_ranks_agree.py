"""What ranks agree on while they load, and what is a rank's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atom_core.config import EngineArgs, EngineConfig, resolve_config
from atom_core.config.devices import CPU
from atom_core.worker.model.compilation import artefacts_folder
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.ranks.protocol import ALONE, Alone
from atom_kernels.platform import detect_platform
from atom_models import open_checkpoint


class PoorNeighbor(Alone):
    """A rank beside one that can hold 40 of anything."""

    def smallest(self, number: int) -> int:
        return min(number, 40)


@pytest.fixture
def config(tiny_llama: Path) -> EngineConfig:
    args = EngineArgs(model=str(tiny_llama), dtype="float32", num_threads=1, max_num_seqs=64)
    return resolve_config(args, open_checkpoint(tiny_llama), detect_platform())


def test_the_cache_is_what_the_rank_with_least_memory_can_hold(config: EngineConfig):
    alone, beside = (ModelRunner(config, ranks=ranks).load().num_blocks for ranks in (ALONE, PoorNeighbor()))
    assert (beside, alone > 40) == (40, True)


def test_ranks_of_a_cpu_share_what_the_cache_may_take(config: EngineConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("atom_core.config.devices.CPU", replace(CPU, cache_cap=2 << 20))
    two = replace(config, parallel=replace(config.parallel, tensor_parallel_size=2))
    whole, half = (ModelRunner(each).load().num_blocks for each in (config, two))
    assert half == whole // 2


def test_compiled_code_belongs_to_a_rank_of_so_many(config: EngineConfig):
    two = replace(config, parallel=replace(config.parallel, tensor_parallel_size=2))
    folders = {artefacts_folder(config), artefacts_folder(two, 0), artefacts_folder(two, 1)}
    assert len(folders) == 3
    assert artefacts_folder(two, 1) == artefacts_folder(two, 1)
