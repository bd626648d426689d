"""On a GPU: an engine that sleeps gives nearly all of its memory back, and wakes up to the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom_core import LLMEngine, SamplingParams

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
PROMPTS = [[5] * 40, [9, 8, 7], [3, 4] * 30]


def tokens(engine: LLMEngine) -> list[list[int]]:
    return [output["token_ids"] for output in engine.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}, {"cudagraph_mode": "piecewise"}], ids=str)
def test_tokens_after_waking_are_those_of_before_and_memory_was_free(
    tiny_llama: Path, level: int, settings: dict[str, object]
) -> None:
    torch.cuda.empty_cache()
    before_start = torch.cuda.memory_allocated()
    with LLMEngine(
        str(tiny_llama), kv_cache_memory="256MiB", max_num_seqs=8, warmup="background", **settings
    ) as engine:
        while engine._core.prepare():
            pass
        before = tokens(engine)
        awake = torch.cuda.memory_allocated()
        for _ in range(2):
            engine.sleep(level)
            asleep = torch.cuda.memory_allocated()
            assert awake - before_start > 256 << 20
            assert asleep - before_start < 112 << 20  # cuBLAS keeps 32 MiB for each of up to three streams
            engine.wake_up()
            assert tokens(engine) == before
            while engine._core.prepare():
                pass
            assert tokens(engine) == before
