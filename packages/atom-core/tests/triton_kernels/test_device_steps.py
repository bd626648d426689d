"""An engine that takes steps the way a GPU does gives the tokens of one that takes them on the host."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from atom_core import SamplingParams
from atom_core.config import CompileConfig, EngineArgs, EngineConfig
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import open_model, resolve
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest, NamedAdapter
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.runner import RunnerInfo
from repeated_work import Repeated
from tiny_adapters import make_adapter

PROMPTS = [[5, 9, 13], list(range(20, 31)), [7], [8, 9, 8, 9, 8]]
PARAMS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "seed": 4},
    {"temperature": 1.1, "seed": 5, "presence_penalty": 0.4, "logprobs": 1},
    # Both stand in the prompt, so that there are drafts.
    {"temperature": 0.0, "allowed_token_ids": [8, 9]},
]


def tokens_of(
    folder: Path,
    *,
    rounds: Sequence[Sequence[int]],
    make: Callable[[EngineConfig], ModelRunner] | None = None,
    max_tokens: int = 3,
    adapters: Sequence[Path] = (),
    **options: Any,
) -> list[list[int]]:
    """Tokens of the requests `rounds` of `PROMPTS`, by number; those of a round begin together.

    `make` gives the runner of a configuration with graphs; without it there are none. The first of the `adapters`
    is that of request 1, and so on; request 0 has none.
    """
    sizes = {"num_kv_blocks": 32, "max_num_seqs": 2, "max_num_batched_tokens": 64, "enable_prefix_caching": False}
    args = EngineArgs(model=str(folder), dtype="float32", num_threads=1, **sizes, **options)
    config = resolve(args, open_model(args))
    if make is not None:
        config = dataclasses.replace(config, compile=CompileConfig(graph_mode="full", capture_sizes=(2,)))
    core = EngineCore(config, InlineExecutor((make or ModelRunner)(config)))
    for number, adapter in enumerate(adapters, start=1):
        core.load_adapter(NamedAdapter(number, str(number), str(adapter), 0.0))
    tokens: list[list[int]] = []
    for numbers in rounds:
        found: dict[str, list[int]] = {str(number): [] for number in numbers}
        for number in numbers:
            params = SamplingParams(**PARAMS[number], max_tokens=max_tokens, ignore_eos=True)
            request = EngineRequest(str(number), PROMPTS[number], params)
            core.add_request(msgspec.structs.replace(request, adapter_id=number if adapters else 0))
        while core.has_unfinished():
            for news in core.step():
                assert news.error is None
                found[news.request_id] += news.new_token_ids
        tokens += found.values()
    stats = core.stats()
    assert stats.num_free_blocks == stats.num_blocks
    # Nobody is idle here: the first decode waits for all graphs.
    assert (stats.num_late_captures > 0) == (make is not None and max_tokens > 1)
    assert (stats.num_draft_tokens > 0) == ("speculative_config" in options)
    core.close()
    return tokens


def test_captured_steps_draw_the_tokens_of_steps_on_the_host(tiny_llama: Path) -> None:
    rounds = [(0, 1), (1, 2)]
    expected = tokens_of(tiny_llama, rounds=rounds)
    Repeated.reset()
    assert tokens_of(tiny_llama, rounds=rounds, make=partial(ModelRunner, capture=Repeated)) == expected
    # Decodes of two requests, and prompts of up to 64 tokens: each a model and two samplers.
    assert Repeated.captured == 2 * 3
    # The first prompts run before anything is captured. Rows that report logprobs are drawn by the host's way.
    assert Repeated.replayed == 2 * 2 + 1 + 2


def test_captured_decodes_compute_each_request_with_its_adapter(tiny_llama: Path, tmp_path: Path) -> None:
    rounds, modules = [(0, 1), (1, 2), (0,), (2, 3)], ("q_proj", "v_proj", "down_proj")
    folders = [make_adapter(tmp_path / str(seed), tiny_llama, seed=seed, modules=modules) for seed in (1, 2, 3)]
    settings = {"rounds": rounds, "adapters": folders, "enable_lora": True, "max_loras": 4}
    expected = tokens_of(tiny_llama, **settings)
    assert expected != tokens_of(tiny_llama, rounds=rounds)
    Repeated.reset()
    assert tokens_of(tiny_llama, make=partial(ModelRunner, capture=Repeated), **settings) == expected
    # Decodes of two requests have a model and two samplers more; prompts with adapters run without a graph.
    assert Repeated.captured == 3 * 3
    # Two decodes of each round, and the third one's prompt. Rows with extras are drawn by the host's way.
    assert Repeated.replayed == 2 * (2 + 1 + 2 + 1) + 2


def test_drafts_that_are_verified_on_the_device_change_no_token(tiny_llama: Path) -> None:
    rounds = [(3,)]
    expected = tokens_of(tiny_llama, rounds=rounds, max_tokens=4)
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "adaptive": False}
    make = partial(ModelRunner, capture=Repeated)
    assert tokens_of(tiny_llama, rounds=rounds, make=make, max_tokens=4, speculative_config=speculation) == expected


def test_an_engine_that_is_closed_leaves_no_model_to_the_garbage_collector(tiny_llama: Path) -> None:
    """The next engine needs the GPU's memory, and Python may collect garbage much later."""
    models: list[weakref.ref[EngineModel]] = []

    class Remembered(ModelRunner):
        def load(self) -> RunnerInfo:
            info = super().load()
            models.append(weakref.ref(self.running.model))
            return info

    gc.disable()
    try:
        assert tokens_of(tiny_llama, rounds=[(0,)], make=partial(Remembered, capture=Repeated), max_tokens=1)
        assert [model() for model in models] == [None]
    finally:
        gc.enable()
