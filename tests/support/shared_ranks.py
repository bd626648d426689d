"""Engines over ranks that run already, and the tokens of one process, which they have to give too."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

from atom_core import LLMEngine, SamplingParams
from atom_core.config import EngineArgs
from atom_core.executor.launchers.protocol import Launcher
from atom_core.executor.processes.executor import ProcessExecutor
from atom_core.executor.processes.rank_processes import RankProcesses
from atom_core.worker.ranks.meeting import Engines
from tiny_architectures import PAST_EVERY_WINDOW

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, seed=7, max_tokens=12, ignore_eos=True)
PARAMS = [GREEDY, SAMPLED] * 3


class SharedRanks(RankProcesses):
    """Processes that stay when an engine lets go of them: one model after the other is loaded into them.

    Args:
        launcher: places and starts them; unset starts them on this host.
        engines: the engines whose ranks meet in a folder; unset is one engine.
        sizes: such as ``tensor_parallel_size=2``, the settings of the engines that get them.
    """

    def __init__(
        self, launcher: Launcher | None = None, engines: tuple[Engines, Path] | None = None, **sizes: int
    ) -> None:
        self.sizes = sizes
        number, folder = engines or (None, None)
        super().__init__(
            prod(sizes.values()),
            device="cpu",
            num_threads=1,
            num_stages=sizes.get("pipeline_parallel_size", 1),
            launcher=launcher,
            engines=number,
            meeting_folder=folder,
        )

    def close(self, grace: float = 0.0) -> None: ...

    def end(self) -> None:
        super().close()


def make_engine(folder: Path, ranks: SharedRanks | None = None, **settings: Any) -> LLMEngine:
    """An engine over `ranks`, or over processes of its own: one, unless settings ask for more."""
    given = {"dtype": "float32", "num_kv_blocks": 64, "max_num_seqs": 16, "num_threads": 1, "seed": 0} | settings
    if ranks is None:
        return LLMEngine.from_args(EngineArgs(model=str(folder), **given))
    args = EngineArgs(model=str(folder), **ranks.sizes, **given)
    return LLMEngine.from_args(args, partial(ProcessExecutor, start_ranks=lambda *_, **__: ranks))


def make_prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(11)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


PROMPTS = make_prompts(PAST_EVERY_WINDOW, 1, 9, 33, 16, 40)


def outputs(engine: LLMEngine, prompts: Any = PROMPTS, params: Any = PARAMS) -> list[list[int]]:
    found = engine.generate(prompts, params, use_tqdm=False)
    assert [output["error"] for output in found] == [None] * len(found)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    return [output["token_ids"] for output in found]


def assert_ranks_change_no_token(model: Path, ranks: SharedRanks, **settings: Any) -> None:
    found = []
    for where in (None, ranks):
        with make_engine(model, where, **settings) as engine:
            found.append(outputs(engine))
    assert found[0] == found[1]


def tokens_of_one_process(tiny_family: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The tokens of one process, by family."""

    @cache
    def of(family: str) -> list[list[int]]:
        with make_engine(tiny_family(family)) as engine:
            return outputs(engine)

    return of


def numbers_of(entries: Any) -> list[float]:
    """The ids and log-probabilities of tokens and of those beside them, one after the other."""
    found: list[float] = []
    for entry in entries:
        found += [entry.token_id, entry.logprob]
        for token_id, _, logprob in entry.top:
            found += [token_id, logprob]
    return found
