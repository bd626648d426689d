"""Adapters of a language model behind pictures: as merged weights, and with blocks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from atom_core import LLMEngine, SamplingParams
from atom_models.vision.towers.qwen3_vl import Qwen3VLVisionTower
from seeing_models import around, make_seeing, picture
from tiny_adapters import adapter_of_all, make_adapter, merge

pytestmark = pytest.mark.usefixtures("quiet_transformers")

SMALL = {"dtype": "float32", "num_kv_blocks": 128, "num_threads": 1, "skip_tokenizer_init": True, "seed": 0}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
FIRST, SECOND = picture(1), picture(2, 3, 3)
GIVEN = [
    {"prompt_token_ids": tokens, "images": images}
    for tokens, images in (
        around([5, 6, 7], FIRST, [8, 9, 10, 11], SECOND, [12]),
        around(picture(3, 8, 8), [21, 22]),
        around([30] * 20),
    )
]
NAMES = (None, "a", "b")


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return make_seeing(folder / "model", head_dim=32, model_type=request.param)


@pytest.fixture(scope="module")
def adapters(model: Path) -> dict[str, str]:
    """Adapters for all linears that take one."""
    return {name: str(adapter_of_all(model.parent / name, model, seed=seed)) for seed, name in enumerate("ab")}


@pytest.fixture(scope="module")
def merged(model: Path, adapters: dict[str, str]) -> dict[str | None, list[dict[str, Any]]]:
    """What models with merged weights answer, without adapters."""
    folders = {None: model} | {name: merge(model.parent / f"merged-{name}", model, adapters[name]) for name in adapters}
    found = {}
    for name, folder in folders.items():
        with LLMEngine(str(folder), **SMALL) as engine:
            found[name] = generate(engine, GIVEN)
    return found


def generate(engine: LLMEngine, prompts: Sequence[Any], adapter: Any = None) -> list[dict[str, Any]]:
    return engine.generate(list(prompts), GREEDY, use_tqdm=False, adapter=adapter)


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 7, "max_num_seqs": 2}], ids=["whole", "in parts"])
def test_a_batch_of_two_adapters_and_none_answers_as_merged_weights_do(
    model: Path, adapters: dict[str, str], merged: dict[str | None, list[dict[str, Any]]], settings: Any
):
    assert len({str(answers[0]["token_ids"]) for answers in merged.values()}) == len(NAMES)
    with LLMEngine(str(model), lora_modules=adapters, **SMALL | settings) as engine:
        found = generate(engine, [prompt for prompt in GIVEN for _ in NAMES], [*NAMES] * len(GIVEN))
    expected = [merged[name][index] for index in range(len(GIVEN)) for name in NAMES]
    for answer, other in zip(found, expected, strict=True):
        assert answer["token_ids"] == other["token_ids"]
        numbers = [[entry.logprob for entry in one["logprobs"]] for one in (answer, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)


def test_a_picture_has_blocks_of_each_adapter_and_is_encoded_once_for_all(
    model: Path, adapters: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    encoded, encode = [], Qwen3VLVisionTower.encode
    monkeypatch.setattr(
        Qwen3VLVisionTower, "encode", lambda tower, pictures: encoded.append(len(pictures)) or encode(tower, pictures)
    )
    same, longer, other = (
        dict(zip(("prompt_token_ids", "images"), around([5, 6, 7], image, text), strict=True))
        for image, text in ((FIRST, [8] * 60), (FIRST, [8] * 64), (picture(4), [8] * 60))
    )
    # States are kept behind 64 tokens.
    with LLMEngine(str(model), lora_modules=adapters, **SMALL) as engine:
        assert [generate(engine, [same], name)[0]["num_cached_tokens"] for name in NAMES] == [0, 0, 0]
        assert min(generate(engine, [longer], name)[0]["num_cached_tokens"] for name in NAMES) >= 64
        assert encoded == [1]
        assert generate(engine, [other], "a")[0]["num_cached_tokens"] == 0


def test_an_adapter_of_the_tower_is_refused_by_name(model: Path, tmp_path: Path):
    folder = make_adapter(tmp_path, model, modules=["qkv", "q_proj"])
    with pytest.raises(ValueError, match=r"model\.visual\.blocks\.0\.attn\.qkv is of the part that sees.*exclude_modu"):
        LLMEngine(str(model), lora_modules={"a": str(folder)}, **SMALL)
