"""Engines that share their experts, in threads of this process over ranks that run already."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from atom_core import SamplingParams
from atom_core.config import EngineArgs, EngineConfig
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import resolve
from atom_core.executor.processes.executor import ProcessExecutor
from atom_core.messages import EngineRequest
from atom_core.worker.ranks.meeting import Engines
from atom_models import open_checkpoint
from shared_ranks import SharedRanks

Asked = tuple[int, list[int], SamplingParams]
"""The engine's number, a prompt, and how it goes on."""


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each gives, all of them in threads; what the first raises that fails, whatever the others wait for."""
    pool = ThreadPoolExecutor(len(works))
    running = [pool.submit(work) for work in works]
    for one in wait(running, return_when=FIRST_EXCEPTION).done:
        one.result()
    return [one.result() for one in running]


class RanksTogether:
    """The processes of `size` engines of `width` ranks each: one model after the other is loaded into them."""

    def __init__(self, size: int, width: int, folder: Path) -> None:
        make = partial(SharedRanks, tensor_parallel_size=width)
        self.of_engines: list[SharedRanks] = at_once(
            [partial(make, engines=(Engines(number, size), folder)) for number in range(size)]
        )

    def end(self) -> None:
        for ranks in self.of_engines:
            ranks.end()


class EnginesTogether:
    """Engines of a model over such ranks, stepped by a thread each for as long as any of them has requests."""

    def __init__(self, model: Path, ranks: RanksTogether, **settings: Any) -> None:
        size = len(ranks.of_engines)
        given = {"dtype": "float32", "num_kv_blocks": 64, "max_num_seqs": 16, "num_threads": 1, "seed": 0} | settings
        width = ranks.of_engines[0].sizes["tensor_parallel_size"]
        given |= {"data_parallel_size": size, "tensor_parallel_size": width, "enable_dp_attention": True}
        args, self._folder = EngineArgs(model=str(model), **given), tempfile.TemporaryDirectory()

        def configuration(number: int) -> EngineConfig:
            config = resolve(args, open_checkpoint(model), data_parallel_rank=number)
            parallel = dataclasses.replace(config.parallel, meeting_folder=Path(self._folder.name))
            return dataclasses.replace(config, parallel=parallel)

        def start(config: EngineConfig) -> EngineCore:
            own = ranks.of_engines[config.parallel.data_parallel_rank]
            return EngineCore(config, ProcessExecutor(config, lambda *_, **__: own))

        # Only processes of their own resolve settings at the same time.
        configs = [configuration(number) for number in range(size)]
        self.cores: list[EngineCore] = at_once([partial(start, config) for config in configs])

    def __enter__(self) -> EnginesTogether:
        return self

    def __exit__(self, *_: object) -> None:
        for core in self.cores:
            core.close()
        self._folder.cleanup()

    def run(self, asked: Sequence[Asked], *, later: Mapping[int, float] | None = None) -> list[list[int]]:
        """The tokens of each; `later` has seconds by which some of them, by their place, come after the others."""
        tokens: list[list[int]] = [[] for _ in asked]
        left, begun = [len(asked)], time.monotonic()
        lock = threading.Lock()

        def serve(number: int) -> None:
            core = self.cores[number]
            waiting = {place: one for place, one in enumerate(asked) if one[0] == number}
            while left[0]:
                for place, (_, prompt, params) in [*waiting.items()]:
                    if time.monotonic() - begun >= (later or {}).get(place, 0.0):
                        params = msgspec.structs.replace(params, seed=params.seed or 0)
                        core.add_request(EngineRequest(str(place), prompt, params))
                        del waiting[place]
                if not core.has_unfinished():
                    time.sleep(0.001)
                    continue
                for news in core.step():
                    assert news.error is None
                    tokens[int(news.request_id)] += news.new_token_ids
                    with lock:
                        left[0] -= news.finish_reason is not None

        def watched(number: int) -> None:
            try:
                serve(number)
            except BaseException:
                left[0] = 0
                self.cores[number].close()  # the others hear of it
                raise

        at_once([partial(watched, number) for number in range(len(self.cores))])
        return tokens
