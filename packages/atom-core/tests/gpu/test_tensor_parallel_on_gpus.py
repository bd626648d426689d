"""On two GPUs, as ranks or stages: the tokens of one, captured and eager; a killed rank ends the engine."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_core import EngineDeadError, LLMEngine, SamplingParams
from atom_core.config import EngineArgs, EngineConfig
from atom_core.executor.processes.executor import ProcessExecutor

pytest.importorskip("transformers")

pytestmark = pytest.mark.multi_gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=20, ignore_eos=True)
LENGTHS = (70, 2, 9, 33, 16, 64, 7, 130)


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Products in TF32 differ with their shape."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def outputs(engine: LLMEngine, params: Any = (GREEDY, SAMPLED)) -> list[list[int]]:
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]
    return [output["token_ids"] for output in engine.generate(prompts, [*params] * 4, use_tqdm=False)]


WAYS = {
    "tensor parallel": {"tensor_parallel_size": 2},
    "pipeline parallel": {"pipeline_parallel_size": 2},
    "expert parallel": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "context parallel": {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
}
SPREADS = list(WAYS)[:3]
MIXTURES = ["qwen3_moe", "gpt_oss", "minimax_m2", "deepseek_v3", "qwen3_next"]


@pytest.mark.parametrize("eager", [False, True], ids=["captured", "eager"])
@pytest.mark.parametrize(
    ("way", "family"),
    [*product(SPREADS[:2], ["llama"]), *product(SPREADS, MIXTURES), ("context parallel", "deepseek_v3")],
)
def test_two_gpus_give_the_tokens_of_one(
    way: str, family: str, eager: bool, tiny_family: Callable[[str], Path]
) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 8, "enforce_eager": eager}
    found = []
    for of_two in ({}, WAYS[way]):
        with LLMEngine(str(tiny_family(family)), **of_two, **settings) as engine:
            # Ranks tell each other of the best tokens alone where all requests are greedy.
            found.append([outputs(engine), outputs(engine), outputs(engine, (GREEDY, GREEDY))])
    assert found[0] == found[1]


def test_a_killed_rank_ends_the_engine_though_the_other_waits_inside_a_sum(tiny_llama: Path) -> None:
    made: list[ProcessExecutor] = []

    def make(config: EngineConfig) -> ProcessExecutor:
        made.append(ProcessExecutor(config))
        return made[-1]

    args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=2, num_kv_blocks=256)
    with LLMEngine.from_args(args, make) as engine:
        engine.add_request([3] * 20, SamplingParams(max_tokens=400, ignore_eos=True))
        for _ in range(5):
            engine.step()
        os.kill(made[0].pids[1], signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(EngineDeadError, match="rank 1 was ended by SIGKILL"):  # noqa: PT012
            while time.monotonic() - started < 5:
                engine.step()
