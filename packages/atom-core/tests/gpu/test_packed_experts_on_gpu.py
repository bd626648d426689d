"""On a GPU: experts that stay packed give the tokens of their numbers, in graphs, compiled, and in any batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_models import open_checkpoint
from atom_models.requirements.layer_weights import layer_weights
from quantized_checkpoints import PUBLISHED, write_gpt_oss, write_quantized
from tiny_architectures import make_tiny

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=4)
SETTINGS: dict[str, Any] = {"num_kv_blocks": 256, "max_num_seqs": 16}
HELD = {"gpt_oss": "mxfp4", "qwen3_moe": "fp8 64x128 and fp8 128x128"}


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


PROMPTS = prompts_of((70, 2, 9, 33, 16, 64, 7, 40))


@pytest.fixture(scope="module", params=HELD)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A family, its quantized checkpoint, and a plain one of the same numbers."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gpt_oss":
        plain = make_tiny("gpt_oss", folder / "plain", hidden_size=96, intermediate_size=64)
        return "gpt_oss", *write_gpt_oss(folder, plain)
    plain = make_tiny("qwen3_moe", folder / "plain", hidden_size=64, moe_intermediate_size=64)
    return "qwen3_moe", *write_quantized(folder, plain, PUBLISHED["fp8 tiles"])


def bits_of(engine: LLMEngine, prompts: list[list[int]]) -> list[list[tuple[int, float]]]:
    outputs: list[dict[str, Any]] = engine.generate(prompts, GREEDY, use_tqdm=False)
    return [[(entry.token_id, entry.logprob) for entry in output["logprobs"]] for output in outputs]


def tokens_of(folder: Path, **settings: Any) -> list[list[int]]:
    with LLMEngine(str(folder), **(SETTINGS | settings)) as engine:
        return [[token for token, _ in bits] for bits in bits_of(engine, PROMPTS)]


def test_experts_of_published_mixtures_stay_packed(written: tuple[str, Path, Path]) -> None:
    family, quantized, _ = written
    [experts] = [kind for kind in layer_weights(open_checkpoint(quantized)) if kind.operator == "moe_experts"]
    assert experts.held == HELD[family]
    assert any("codes decoded in registers" in one for one in experts.implementations)


def test_packed_experts_give_the_tokens_of_their_numbers(written: tuple[str, Path, Path]) -> None:
    _, quantized, twin = written
    expected = tokens_of(twin, dtype="float32", enforce_eager=True)
    assert tokens_of(quantized, dtype="float32", enforce_eager=True) == expected
    assert tokens_of(quantized, dtype="float32") == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what torch imports of itself to compile
def test_compiled_models_of_packed_experts_give_the_same_tokens(
    written: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    _, quantized, twin = written
    assert tokens_of(quantized, dtype="float32", level=3) == tokens_of(twin, dtype="float32", enforce_eager=True)


def test_a_request_has_the_same_bits_alone_and_in_every_batch(written: tuple[str, Path, Path]) -> None:
    settings = SETTINGS | {"dtype": "bfloat16", "batch_invariant": True, "enable_prefix_caching": False}
    with LLMEngine(str(written[1]), **settings) as engine:
        together = bits_of(engine, PROMPTS)
        assert [bits_of(engine, [prompt])[0] for prompt in PROMPTS] == together


def test_plain_experts_can_be_rounded_as_they_load(tmp_path: Path) -> None:
    plain = make_tiny("qwen3_moe", tmp_path / "plain", hidden_size=64, moe_intermediate_size=64)
    eager = tokens_of(plain, dtype="float32", quantization="mxfp4", enforce_eager=True)
    assert tokens_of(plain, dtype="float32", quantization="mxfp4") == eager
    assert tokens_of(plain, dtype="float32") != eager
