"""Compiled models give the tokens of those that are not, and find what was compiled before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from atom_core import LLMEngine, SamplingParams
from atom_core.config import EngineArgs, EngineConfig
from atom_core.engine.startup import open_model, resolve
from atom_core.worker.model.compilation import artefacts_folder
from quantized_checkpoints import PUBLISHED, write_quantized

# A module that torch imports to compile.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PROMPTS = [[5, 6, 7], [9] * 30]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_compiled_model_gives_the_tokens_of_the_eager_one(make_engine: Callable[..., LLMEngine], level: int) -> None:
    expected = [output["token_ids"] for output in make_engine().generate(PROMPTS, GREEDY, use_tqdm=False)]
    outputs = make_engine(level=level).generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None, None]
    assert [output["token_ids"] for output in outputs] == expected


def test_a_compiled_quantized_model_gives_the_tokens_of_the_eager_one(
    tiny_llama: Path, tmp_path: Path, make_engine: Callable[..., LLMEngine]
) -> None:
    folder, _ = write_quantized(tmp_path, tiny_llama, PUBLISHED["int4 packed"])
    expected = make_engine(folder).generate(PROMPTS, GREEDY, use_tqdm=False)
    outputs = make_engine(folder, level=2).generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in outputs] == [output["token_ids"] for output in expected]


def test_a_compilation_that_a_step_waits_for_is_counted(make_engine: Callable[..., LLMEngine]) -> None:
    assert make_engine().stats.num_late_compilations == 0
    engine = make_engine(level=1)
    engine.generate(PROMPTS, GREEDY, use_tqdm=False)
    first = engine.stats.num_late_compilations
    assert first > 0
    engine.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert engine.stats.num_late_compilations == first


def config_of(folder: Path, **overrides: object) -> EngineConfig:
    args = EngineArgs(model=str(folder), **overrides)  # type: ignore[arg-type]
    return resolve(args, open_model(args))


def test_artefacts_are_kept_apart_by_what_they_were_made_of(tiny_llama: Path, tiny_llama_tied: Path) -> None:
    config = config_of(tiny_llama, level=2, dtype="float32")
    folder = artefacts_folder(config)
    assert folder == artefacts_folder(config_of(tiny_llama, level=2, dtype="float32", seed=5))
    others = [
        config_of(tiny_llama_tied, level=2, dtype="float32"),
        config_of(tiny_llama, level=3, dtype="float32"),
        config_of(tiny_llama, level=2, dtype="bfloat16"),
        dataclasses.replace(config, model=dataclasses.replace(config.model, architecture="Other")),
    ]
    assert len({folder, *map(artefacts_folder, others)}) == 5
