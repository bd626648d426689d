"""Quantized checkpoints inside vLLM: our classes take them, and generate what our own engine does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_core import LLMEngine, SamplingParams
from quantized_checkpoints import PUBLISHED, Published, write_gpt_oss, write_quantized
from tests.with_vllm.conftest import IN_PROCESS, Outcome
from tests.with_vllm.generate import prompts
from tiny_architectures import make_tiny

_SYMMETRIC_GPTQ = replace(PUBLISHED["gptq sorted"], config={**PUBLISHED["gptq sorted"].config, "desc_act": False})
# vLLM's own reading of the config refuses the two other kinds of GPTQ before it asks for a model, depending on version.
LLAMAS: dict[str, Published] = {
    name: published for name, published in PUBLISHED.items() if not name.startswith(("gptq", "nf4"))
} | {"gptq symmetric": _SYMMETRIC_GPTQ}
MIXTURES = {"qwen3_moe": ("fp8 tiles", {}), "deepseek_v3": ("fp8 tiles", {})}
NAMES = (*LLAMAS, *MIXTURES, "gpt_oss")
NUM_TOKENS = 16

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("quantized")
    plain = make_tiny("llama-3.1", root / "llama", head_dim=32)
    made = {name: write_quantized(root / name, plain, published)[0] for name, published in LLAMAS.items()}
    for family, (name, sizes) in MIXTURES.items():
        own_sizes = {} if family.startswith("deepseek") else {"head_dim": 32}
        plain = make_tiny(family, root / f"plain {family}", **own_sizes, **sizes)
        made[family], _ = write_quantized(root / family, plain, PUBLISHED[name])
    plain = make_tiny("gpt_oss", root / "plain gpt_oss", head_dim=32, hidden_size=96, intermediate_size=64)
    made["gpt_oss"], _ = write_gpt_oss(root / "gpt_oss", plain)
    return made


def job(folder: Path) -> dict[str, Any]:
    # In float32, vLLM refuses most formats by itself.
    return {"model": folder, "llm": {"max_model_len": 256, "dtype": "bfloat16"}, "num_tokens": NUM_TOKENS}


@pytest.fixture(scope="module")
def inside(run_jobs, folders) -> dict[str, Outcome]:
    return dict(zip(NAMES, run_jobs([job(folders[name]) for name in NAMES], IN_PROCESS), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_quantized_checkpoint_generates_what_our_own_engine_does(folders, inside, name: str) -> None:
    assert inside[name].error is None, inside[name].log[-4000:]
    assert "to vLLM with atom_vllm.models.model_wrapper:ATOM" in inside[name].log
    with LLMEngine(str(folders[name]), dtype="bfloat16", skip_tokenizer_init=True) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        own = [output["token_ids"] for output in engine.generate(prompts(300), params, use_tqdm=False)]
    assert inside[name].tokens == [own]


def test_what_is_wrong_with_a_file_is_told_before_weights_are_loaded(run_jobs, folders, tmp_path) -> None:
    layer = "model.layers.1.mlp.down_proj"
    damages = {
        "int4 packed": ({f"{layer}.weight_scale": torch.ones(64, 5, dtype=torch.bfloat16)}, "weight_scale is [64, 5]"),
        "awq": ({f"{layer}.qzeros": None}, f"{layer} is stored as qweight, scales, but the config calls for"),
    }
    for name, (changes, _) in damages.items():
        weights = {**load_file(folders[name] / "model.safetensors"), **changes}
        copy = tmp_path / name
        copy.mkdir()
        (copy / "config.json").write_bytes((folders[name] / "config.json").read_bytes())
        save_file({key: one for key, one in weights.items() if one is not None}, copy / "model.safetensors")
    outcomes = run_jobs([job(tmp_path / name) for name in damages], IN_PROCESS)
    for (_, says), outcome in zip(damages.values(), outcomes, strict=True):
        assert says in str(outcome.error), outcome.log[-4000:]
        assert "Loading safetensors" not in outcome.log


def test_what_ours_does_not_read_is_vllms_own(run_jobs, folders) -> None:
    """No kernel of ours for a CPU reads packed numbers beside activations in float16."""
    fp16 = job(folders["int4 packed"]) | {"llm": {"max_model_len": 256, "dtype": "float16"}}
    [outcome] = run_jobs([fp16], IN_PROCESS)
    assert "LlamaForCausalLM is vLLM's own, because no kernel of ours reads" in outcome.log
