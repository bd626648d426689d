"""On a GPU: graphs and compile levels change no token, however rows are sampled and whenever they arrive."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import LLMEngine, SamplingParams
from atom_kernels.attention.triton.backend import TritonAttention
from tiny_models import make_tiny_llama

pytest.importorskip("transformers")

# The modules that torch imports to compile warn of features that it will drop.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# More requests than a captured step with prompts may have.
LENGTHS = (70, 1, 9, 33, 16, 64, 7, 40, 3, 128, 17, 2, 5, 31, 90, 8, 24, 11, 6, 50, 4)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
RANDOM = msgspec.structs.replace(GREEDY, temperature=0.9, seed=5)
FILTERED = msgspec.structs.replace(RANDOM, top_k=20, top_p=0.9)
PENALIZED = msgspec.structs.replace(RANDOM, presence_penalty=0.5, logprobs=2, prompt_logprobs=1)
KINDS = (GREEDY, RANDOM, FILTERED, PENALIZED)
MODES = ("full", "piecewise", "full-and-piecewise")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]


def tokens_of(folder: Path, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
    """Tokens of batches of one kind, of all kinds together, and of requests that arrive while others decode."""
    with LLMEngine(str(folder), dtype="float32", num_kv_blocks=256, max_num_seqs=24, **settings) as engine:
        outputs = [output for kind in KINDS for output in engine.generate(prompts, kind, use_tqdm=False)]
        mixed = [KINDS[index % len(KINDS)] for index in range(len(prompts))]
        outputs += engine.generate(prompts, mixed, use_tqdm=False)
        request_ids, found = [], {}
        for prompt, params in zip(prompts, mixed, strict=True):
            request_ids += engine.add_request([prompt], params)
            found |= {output["request_id"]: output for output in engine.step()}
        while not engine.is_finished():
            found |= {output["request_id"]: output for output in engine.step()}
        outputs += [found[request_id] for request_id in request_ids]
        assert [output["error"] for output in outputs] == [None] * len(outputs)
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
    return [output["token_ids"] for output in outputs]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_moe"])
def test_graphs_and_compile_levels_draw_the_tokens_of_eager_steps(
    family: str, mode: str, tiny_family: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    folder = tiny_family(family)
    eager = tokens_of(folder, prompts, enforce_eager=True)
    for level in range(4):
        assert tokens_of(folder, prompts, level=level, cudagraph_mode=mode) == eager


@pytest.mark.parametrize("family", ["deepseek_v2", "gpt_oss"])
def test_graphs_of_every_mode_draw_the_tokens_of_eager_steps(
    family: str, tiny_family: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    folder = tiny_family(family)
    eager = tokens_of(folder, prompts, enforce_eager=True)
    for mode in MODES:
        assert tokens_of(folder, prompts, cudagraph_mode=mode) == eager


@pytest.mark.parametrize("mode", MODES)
def test_long_prompts_draw_the_tokens_of_eager_steps(mode: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "llama", max_position=9000, seed=7)
    draw = random.Random(6)
    prompts = [[draw.randrange(3, 384) for _ in range(length)] for length in (2100, 3000, 40, 5000, 8192, 7)]

    def tokens(**settings: Any) -> list[list[int]]:
        settings |= {"dtype": "float32", "max_num_batched_tokens": 8192, "max_num_seqs": 8, "num_kv_blocks": 1400}
        with LLMEngine(str(folder), **settings) as engine:
            # A decode has everything captured.
            engine.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
            alone = [output for prompt in prompts for output in engine.generate([prompt], GREEDY, use_tqdm=False)]
            return [output["token_ids"] for output in (*alone, *engine.generate(prompts, GREEDY, use_tqdm=False))]

    assert tokens(cudagraph_mode=mode) == tokens(enforce_eager=True)


def test_attention_that_cannot_be_captured_runs_between_graphs(
    tiny_family: Callable[[str], Path],
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tiny_family("qwen3")
    eager = tokens_of(folder, prompts, enforce_eager=True)
    monkeypatch.setattr(TritonAttention, "capturable", False)
    with caplog.at_level("INFO"):
        assert tokens_of(folder, prompts) == eager
    assert "captured pieces for" in caplog.text
