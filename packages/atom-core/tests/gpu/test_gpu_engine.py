"""On a GPU: neither graphs nor compiling change a token of any family, and a long random run loses nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams

pytest.importorskip("transformers")

import torch

from atom_models import supported_architectures
from quantized_checkpoints import QUANTIZED_FAMILIES, plain_twin, write_family
from soak import MANY_TOKENS, Soak, greedy
from tiny_architectures import PAST_EVERY_WINDOW, families, reference_model

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
LENGTHS = (PAST_EVERY_WINDOW, 1, 9, 33, 16, 64, 7, 40, 3, 128, 17)
NUM_REQUESTS = 2000
LONGEST_PROMPT, LONGEST_REQUEST = 8000, 8000 + MANY_TOKENS


@pytest.fixture(scope="module", params=[*families(supported_architectures()), *QUANTIZED_FAMILIES])
def folder(
    request: pytest.FixtureRequest, tiny_family: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp("quantized"), tiny_family)


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


def tokens_of(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    outputs: list[dict[str, Any]] = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


def test_graphs_and_eager_steps_give_the_tokens_of_transformers(folder: Path) -> None:
    prompts = prompts_of(LENGTHS)
    with LLMEngine(str(folder), dtype="float32", enforce_eager=True, num_kv_blocks=256) as engine:
        eager = tokens_of(engine, prompts)
    with LLMEngine(str(folder), dtype="float32", num_kv_blocks=256, max_num_seqs=16) as engine:
        assert tokens_of(engine, prompts) == eager
        assert [tokens_of(engine, [prompt])[0] for prompt in prompts[:3]] == eager[:3]
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
    if plain_twin(folder) != folder:
        return  # the invariants hold quantized numbers to plain ones
    model = reference_model(folder).cuda()
    for prompt, tokens in zip(prompts, eager, strict=True):
        with torch.inference_mode():
            best = model(torch.tensor([prompt + tokens], device="cuda")).logits[0].argmax(-1).tolist()
        assert best[len(prompt) - 1 : -1] == tokens


def test_drafts_change_no_token_beside_graphs_and_prompts(folder: Path) -> None:
    """They are verified outside of graphs; the other steps of the same requests are replayed."""
    prompts = [prompt[: len(prompt) // 2] * 2 or prompt for prompt in prompts_of(LENGTHS)]
    options = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 16}
    with LLMEngine(str(folder), **options) as engine:
        expected = tokens_of(engine, prompts)
    for adaptive in (False, True):
        speculation = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": adaptive}
        with LLMEngine(str(folder), **options, speculative_config=speculation) as engine:
            assert tokens_of(engine, prompts) == expected
            assert engine.stats.num_draft_tokens > 0 or adaptive
            assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3", "deepseek_v2", "gpt_oss"])
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_a_whole_model_that_drafts_for_itself_changes_no_token_and_is_right(
    family: str, enforce_eager: bool, tiny_family: Callable[[str], Path]
) -> None:
    folder, prompts = str(tiny_family(family)), prompts_of(LENGTHS)
    options = {"dtype": "float32", "num_kv_blocks": 512, "max_num_seqs": 16, "enforce_eager": enforce_eager}
    with LLMEngine(folder, **options) as engine:
        expected = tokens_of(engine, prompts)
    speculation = {"method": "draft_model", "model": folder, "num_speculative_tokens": 3, "adaptive": False}
    with LLMEngine(folder, **options, speculative_config=speculation) as engine:
        # The second time prompts are found in the cache.
        for _ in range(2):
            assert tokens_of(engine, prompts) == expected
        stats = engine.stats
        assert stats.num_accepted_tokens > 0.97 * stats.num_draft_tokens > 300
        assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next", "qwen3_5_moe", "deepseek_v32", "glm_moe_dsa"])
def test_drafts_of_prediction_layers_change_no_token_in_graphs(family: str, tiny_family: Callable[[str], Path]) -> None:
    """Random ones are mostly wrong, so that each step goes on from another place than the one before it ended at."""
    prompts = prompts_of(LENGTHS)
    options = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 16}
    with LLMEngine(str(tiny_family(family)), **options) as engine:
        expected = tokens_of(engine, prompts)
    speculation = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
    with LLMEngine(str(tiny_family(family)), **options, speculative_config=speculation) as engine:
        assert tokens_of(engine, prompts) == expected
        assert [tokens_of(engine, [prompt])[0] for prompt in prompts[:3]] == expected[:3]
        assert engine.stats.num_draft_tokens > engine.stats.num_accepted_tokens
        assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what torch imports of itself to compile
@pytest.mark.parametrize("level", [1, 2, 3])
def test_compiled_models_give_the_tokens_of_eager_steps(
    folder: Path, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()
    prompts = prompts_of(LENGTHS)
    with LLMEngine(str(folder), dtype="float32", enforce_eager=True, num_kv_blocks=256) as engine:
        eager = tokens_of(engine, prompts)
    with LLMEngine(str(folder), dtype="float32", level=level, num_kv_blocks=256, max_num_seqs=16) as engine:
        assert tokens_of(engine, prompts) == eager
        assert [tokens_of(engine, [prompt])[0] for prompt in prompts[:3]] == eager[:3]


_COMPILED_LATE = """
import sys, threading
import triton
from atom_core import LLMEngine, SamplingParams

late = []

def listen(*, src, **rest):
    if not threading.current_thread().name.startswith("compile_ahead"):
        late.append(src.name)

triton.knobs.compilation.listener = listen
with LLMEngine(sys.argv[1], dtype="bfloat16", num_kv_blocks=256, max_num_seqs=16) as engine:
    engine.generate([[5] * 40, [6] * 9], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
    engine.generate([[7] * 40, [8] * 9], SamplingParams(max_tokens=9, ignore_eos=True), use_tqdm=False)
print("late:", *sorted(late))
"""


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v2", "gpt_oss"])
def test_requests_find_their_kernels_compiled(family: str, tiny_family: Callable[[str], Path], tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _COMPILED_LATE, str(tiny_family(family))],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.splitlines()[-1] == "late:"


@pytest.fixture(scope="module")
def tiny_long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("soak") / "llama", max_position=LONGEST_REQUEST, seed=7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_thousand_random_requests_lose_no_block_and_get_the_tokens_that_each_gets_alone(
    dtype: str, tiny_long_llama: Path
) -> None:
    settings: dict[str, Any] = {"dtype": dtype, "batch_invariant": True, "max_model_len": LONGEST_REQUEST}
    settings |= {"max_num_batched_tokens": 4096, "max_num_seqs": 64, "num_kv_blocks": 640}
    with LLMEngine(str(tiny_long_llama), **settings) as engine:
        soak = Soak(engine, longest=LONGEST_PROMPT)
        soak.run(NUM_REQUESTS)
        assert len(soak.aborted) > 0
        assert len(soak.preempted) > 0
        assert engine.stats.prefix_cache_hits > 0
    # A preempted request computes its tokens again as a prompt, by other kernels: equal in float32, near in bfloat16.
    sample = soak.sample(60, with_preempted=dtype == "float32")
    with LLMEngine(str(tiny_long_llama), enable_prefix_caching=False, **settings) as engine:
        for name, wanted in sample.items():
            [alone] = engine.generate([wanted.prompt], greedy(wanted.num_tokens), use_tqdm=False)
            assert alone["token_ids"] == soak.finished[name]


def test_an_engine_that_is_closed_gives_its_memory_back(tiny_family: Callable[[str], Path]) -> None:
    before = torch.cuda.memory_reserved()
    with LLMEngine(str(tiny_family("qwen3")), dtype="float32", num_kv_blocks=40_000) as engine:
        engine.generate([[3, 4, 5]], greedy(4), use_tqdm=False)
        taken = torch.cuda.memory_reserved() - before
    assert torch.cuda.memory_reserved() - before < taken / 2


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_per_token_head"])
@pytest.mark.parametrize("family", ["qwen3", "deepseek_v2"])
def test_a_cache_in_fp8_gives_the_same_tokens_in_graphs_and_in_eager_steps(
    family: str, kv_cache_dtype: str, tiny_family: Callable[[str], Path]
) -> None:
    prompts, options = prompts_of(LENGTHS), {"dtype": "float32", "kv_cache_dtype": kv_cache_dtype, "num_kv_blocks": 256}
    folder = str(tiny_family(family))
    with LLMEngine(folder, enforce_eager=True, enable_prefix_caching=False, **options) as engine:
        eager = tokens_of(engine, prompts)
    with LLMEngine(folder, max_num_seqs=16, enable_prefix_caching=False, **options) as engine:
        assert tokens_of(engine, prompts) == eager
