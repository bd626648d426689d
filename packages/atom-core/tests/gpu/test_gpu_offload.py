"""On a GPU: blocks that left the cache come back by pinned memory and from a disk, while others decode."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams

pytest.importorskip("transformers")

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 40, "max_num_seqs": 8, "max_model_len": 400}
DISK: dict[str, Any] = {"kv_offload_memory": "1MiB", "kv_offload_disk": "64MiB"}


def prompts_of(num_prompts: int) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(300)] for _ in range(num_prompts)]


def rounds_of(engine: LLMEngine) -> list[list[int]]:
    """Six prompts of which the cache holds two, three times over, beside one that decodes."""
    tokens = []
    for _ in range(3):
        for prompt in prompts_of(6):
            outputs = engine.generate([prompt, [7, 8, 9]], GREEDY, use_tqdm=False)
            assert [output["error"] for output in outputs] == [None, None]
            tokens += [output["token_ids"] for output in outputs]
    return tokens


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
@pytest.mark.parametrize("medium", ["memory", "disk"])
def test_blocks_come_back_and_no_token_changes(
    tiny_family: Callable[[str], Path], tmp_path: Path, family: str, medium: str
) -> None:
    folder = str(tiny_family(family))
    offload = {"kv_offload_memory": "64MiB"} if medium == "memory" else DISK | {"kv_offload_folder": str(tmp_path)}
    with LLMEngine(folder, **SETTINGS) as engine:
        expected = rounds_of(engine)
    with LLMEngine(folder, **SETTINGS, **offload) as engine:
        assert rounds_of(engine) == expected
        stats = engine.stats.offload
    assert stats is not None
    assert stats.num_loaded_from_memory + stats.num_loaded_from_disk > 0
    assert stats.num_failed == 0
