"""Tiny random models that see give inside vLLM what stock vLLM does, and our own engine: by our tower and our text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom_core import LLMEngine, SamplingParams
from seeing_models import END, IMAGE, START, make_seeing
from tests.with_vllm.conftest import ATTENTION_OURS, IN_PROCESS, STOCK, Outcome

# Height and width in pixels: 24, 18 and 25 tokens.
WIDE, HIGH, SQUARE = (1, 32, 48), (2, 48, 24), (3, 40, 40)
SHOWN: list[Any] = [
    ([*range(5, 25), START, IMAGE, END, 9, 10], [WIDE]),
    ([*range(5, 25), START, IMAGE, END, 9, 10], [HIGH]),
    ([START, IMAGE, END, 9, START, IMAGE, END, 10, 11, START, IMAGE, END], [WIDE, HIGH, SQUARE]),
    ([5, 6, 7, 8, 9, 10], []),
]
TEXT = [[ids, []] for ids, pictures in SHOWN if not pictures]
JOB: dict[str, Any] = {"num_tokens": 24, "shown": SHOWN}
# Recent releases of transformers refuse the prompts that vLLM 0.27 measures memory by.
LLM = {"skip_tokenizer_init": False, "block_size": 32, "skip_mm_profiling": True}
CHUNKS = {"max_num_batched_tokens": 16, "enable_chunked_prefill": True, "enable_prefix_caching": False}
OURS = "to vLLM with atom_vllm.models.seeing:ATOMForConditionalGeneration"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-VL with the smallest heads that vLLM's own attention takes on a CPU."""
    return make_seeing(tmp_path_factory.mktemp("seeing") / "qwen3_vl", head_dim=32)


@pytest.fixture(scope="module")
def stock(run_jobs, seeing: Path) -> Outcome:
    [outcome] = run_jobs([JOB | {"model": seeing, "llm": LLM}], IN_PROCESS | STOCK)
    assert outcome.error is None, outcome.log[-4000:]
    return outcome


def test_several_pictures_and_none_give_what_stock_vllm_does(run_jobs, seeing: Path, stock: Outcome) -> None:
    """The second time tokens of pictures are found in the prefix cache, and other pictures' are not."""
    [ours] = run_jobs([JOB | {"model": seeing, "llm": LLM, "rounds": 2}], IN_PROCESS)
    assert ours.error is None, ours.log[-4000:]
    assert f"Register model Qwen3VLForConditionalGeneration {OURS}" in ours.log
    assert ATTENTION_OURS in ours.log
    assert stock.tokens is not None
    assert ours.tokens == stock.tokens * 2
    assert ours.cached == [[0, 0, 0, 0], [32, 32, 64, 0]]
    first, second, *_ = stock.tokens[0]
    assert first != second  # what is seen changes what is said


def test_our_own_engine_says_the_same(seeing: Path, stock: Outcome) -> None:
    assert [own_tokens(seeing, SHOWN)] == stock.tokens


def test_qwen3_5_sees_what_our_own_engine_does_beside_its_states(run_jobs, tmp_path: Path) -> None:
    """Stock vLLM has delta nets for CPUs in bfloat16 alone."""
    folder = make_seeing(tmp_path / "qwen3_5", head_dim=32, model_type="qwen3_5")
    jobs = [JOB | {"model": folder, "llm": LLM | asked} for asked in ({"enable_prefix_caching": False}, CHUNKS)]
    again = JOB | {"model": folder, "llm": LLM | {"enable_prefix_caching": True}, "rounds": 2}
    whole, chunks, cached = run_jobs([*jobs, again], IN_PROCESS)
    expected = own_tokens(folder, SHOWN)
    assert whole.tokens == chunks.tokens == [expected], (whole.log[-4000:], chunks.log[-4000:])
    assert cached.tokens == [expected] * 2, cached.log[-4000:]
    assert f"Register model Qwen3_5ForConditionalGeneration {OURS}" in whole.log
    assert cached.cached is not None
    assert max(cached.cached[1]) > 0
    assert expected[0] != expected[1]  # what is seen changes what is said


def test_kimi_sees_what_our_own_engine_does(run_jobs, tiny, vllm_release) -> None:
    """Stock vLLM has kernels for latents of published sizes alone, where it has any for CPUs.

    Its 0.32 cannot start an engine in a process that has prepared pictures for Kimi, so each has one of its own.
    """
    folder = tiny("kimi_k25")
    _add_chunks(folder)
    shown = [([{START: 3, IMAGE: 0, END: 4}.get(token, token) for token in ids], pictures) for ids, pictures in SHOWN]
    job = JOB | {"model": folder, "shown": shown, "of_kimi": True, "rounds": 2}
    llm = LLM | {"max_model_len": 256}
    whole, chunks = run_jobs([job | {"llm": llm}, job | {"llm": llm | CHUNKS}])
    assert whole.tokens == chunks.tokens == [own_tokens(folder, shown)] * 2, (whole.log[-4000:], chunks.log[-4000:])
    assert f"Register model KimiK25ForConditionalGeneration {OURS}" in whole.log
    # From then on vLLM has latents on CPUs, with neither prefix caching nor chunks.
    found_again = [32, 32, 64, 0] if vllm_release < (0, 29) else [0, 0, 0, 0]
    assert whole.cached == [[0, 0, 0, 0], found_again]


def _add_chunks(folder: Path) -> None:
    """What vLLM's processor of Kimi asks for besides."""
    path = folder / "preprocessor_config.json"
    found = json.loads(path.read_text())
    limits = dict.fromkeys(("in_patch_limit_each_frame", "in_patch_limit_video"))
    found["media_proc_cfg"] |= {"temporal_merge_kernel_size": 4, **limits}
    path.write_text(json.dumps(found))


def test_chunks_that_end_inside_pictures_and_compiling_change_nothing(run_jobs, seeing: Path, stock: Outcome) -> None:
    """Traced, as it is on a GPU; "eager" stands for inductor, which takes minutes."""
    jobs = [JOB | {"model": seeing, "llm": LLM | asked} for asked in (CHUNKS, {"enforce_eager": False})]
    outcomes = run_jobs(jobs, IN_PROCESS | {"ATOM_VLLM_COMPILE": "1", "VLLM_CPU_CI_ENV": "1"})
    assert [outcome.tokens for outcome in outcomes] == [stock.tokens] * 2, [outcome.error for outcome in outcomes]
    assert all(OURS in outcome.log for outcome in outcomes)
    assert "Detected eager backend" in outcomes[1].log


def test_only_the_models_or_only_the_attention_are_ours(run_jobs, seeing: Path, stock: Outcome) -> None:
    job = JOB | {"model": seeing, "llm": LLM}
    [models] = run_jobs([job], IN_PROCESS | {"ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "1"})
    [attention] = run_jobs([job], IN_PROCESS | {"ATOM_VLLM_ARCHITECTURES": ""})
    assert models.tokens == attention.tokens == stock.tokens
    assert (OURS in models.log, OURS in attention.log) == (True, False)


def test_texts_alone_need_no_tower(run_jobs, seeing: Path, stock: Outcome) -> None:
    llm = LLM | {"limit_mm_per_prompt": {"image": 0, "video": 0}}
    [ours] = run_jobs([JOB | {"model": seeing, "llm": llm, "shown": TEXT}], IN_PROCESS)
    assert stock.tokens is not None
    assert ours.tokens == [stock.tokens[0][-1:]], ours.log[-4000:]
    assert OURS in ours.log


def own_tokens(folder: Path, shown: list[Any]) -> list[list[int]]:
    prompts = [{"prompt_token_ids": ids, "images": [drawn(*one) for one in pictures]} for ids, pictures in shown]
    with LLMEngine(str(folder), dtype="float32") as engine:
        params = SamplingParams(temperature=0.0, max_tokens=JOB["num_tokens"], ignore_eos=True)
        return [output["token_ids"] for output in engine.generate(prompts, params, use_tqdm=False)]


def drawn(seed: int, *size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
