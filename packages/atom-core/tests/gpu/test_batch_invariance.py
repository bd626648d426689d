"""On a GPU, with `batch_invariant`: a request has the same bits alone, in a batch, in a graph and out of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams

pytest.importorskip("transformers")

from quantized_checkpoints import QUANTIZED_FAMILIES, write_family

pytestmark = pytest.mark.gpu

# Log-probabilities are reported to the last bit, so that equal ones mean equal logits.
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=4)
LENGTHS = (70, 2, 9, 33, 16, 64, 7, 130)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_moe", "deepseek_v2", *QUANTIZED_FAMILIES])
def test_a_request_has_the_same_bits_alone_and_in_every_batch(
    family: str, dtype: str, tiny_family: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = str(write_family(family, tmp_path, tiny_family))
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]
    settings: dict[str, Any] = {"dtype": dtype, "num_kv_blocks": 256, "max_num_seqs": 8, "batch_invariant": True}
    settings["enable_prefix_caching"] = False
    with LLMEngine(folder, **settings) as engine:
        together = bits_of(engine, prompts)
        assert [bits_of(engine, [prompt])[0] for prompt in prompts] == together
    with LLMEngine(folder, enforce_eager=True, **settings) as engine:
        assert bits_of(engine, prompts[2:5]) == together[2:5]


def bits_of(engine: LLMEngine, prompts: list[list[int]]) -> list[list[tuple[int, float]]]:
    outputs = engine.generate(prompts, GREEDY, use_tqdm=False)
    return [[(entry.token_id, entry.logprob) for entry in output["logprobs"]] for output in outputs]
