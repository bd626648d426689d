"""Engines generate from tiny checkpoints in every published layout on simulated AMD GPUs, as torch would have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom_core import LLMEngine, SamplingParams
from atom_models import load_model

pytest.importorskip("transformers")

from aiter_calls import recorded_calls
from amd_machine import amd_machine
from quantized_checkpoints import PUBLISHED, Published, write_quantized
from tiny_architectures import make_tiny

pytestmark = pytest.mark.usefixtures("quiet_transformers")

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [7, 11], [250, 17, 33, 90, 4]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "head_dim": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
# Layouts whose rows AITER rounds: how far a token may be from the best, as a share of the logits' size.
ROUNDED = {"fp8 tiles": 0.3, "fp8 rows": 0.3, "fp8 tensors": 0.3, "int8 rows": 0.15, "int4 rows": 0.3, "mxfp4": 1.2}
EXACT = 0.05
PRODUCTS = {"gemm_a8w8", "gemm_a8w8_bpreshuffle", "gemm_a8w8_blockscale_bpreshuffle", "gemm_a4w4"}


@pytest.fixture(scope="module", params=PUBLISHED)
def layout(request: pytest.FixtureRequest) -> tuple[str, Published]:
    return request.param, PUBLISHED[request.param]


@pytest.fixture(scope="module")
def folders(layout: tuple[str, Published], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("published")
    plain = make_tiny("llama", folder / "plain", **SIZES)
    return write_quantized(folder, plain, layout[1])


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_an_engine_generates_what_the_plain_twin_finds_best(
    layout: tuple[str, Published], folders: tuple[Path, Path], arch: str
):
    quantized, twin = folders
    with amd_machine(arch), recorded_calls() as calls:
        settings = {"num_kv_blocks": 16, "num_threads": 1, "max_num_batched_tokens": 16}
        with LLMEngine(str(quantized), dtype="bfloat16", **settings) as engine:
            outputs = engine.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(PROMPTS)
    name = layout[0]
    rounds = bool(calls.names & PRODUCTS)
    assert not rounds or name in ROUNDED
    model = load_model(twin, dtype="float32", progress=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        tokens = output["token_ids"]
        assert len(tokens) == GREEDY.max_tokens
        logits = model.logits([prompt + tokens[:-1]])[0][len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        short_of_best = (logits.amax(1) - chosen) / logits.pow(2).mean(1).sqrt()
        assert short_of_best.max() <= (ROUNDED[name] if rounds else EXACT)
