"""The whole engine on a simulated AMD GPU: AITER's kernels are called, and give the tokens that torch gives.

Sizes are tiny where AITER's kernels allow it; heads are as large as the kernels want them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_kernels.platform import Platform, use_platform

pytest.importorskip("transformers")

from aiter_calls import recorded_calls
from amd_machine import amd_machine
from tiny_architectures import make_tiny

pytestmark = pytest.mark.usefixtures("quiet_transformers")

NUM_TOKENS = 12
LENGTHS = (40, 1, 17, 33)
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
MLA = {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 32,
    "n_group": 8,
    "topk_group": 4,
}


@dataclass(frozen=True)
class Model:
    """A family with sizes that AITER has kernels for, and exactly the functions of AITER that its steps call.

    `seed` draws weights for which no best token is nearly tied with the second, see `CLEAR`. `calls` are those of both
    releases, `git` and `pypi` those of one.
    """

    family: str
    seed: int
    calls: set[str]
    git: set[str]
    pypi: set[str]
    sizes: dict[str, Any] = field(default_factory=dict)


# The margin of the best token's log-probability over the second's: far more than bfloat16's rounding.
CLEAR = 0.04
DENSE = {"tgemm.mm", "rmsnorm2d_fwd", "rmsnorm2d_fwd_with_add"}
GATED = {"silu_and_mul"}
EXPERTS = {"fused_moe", "shuffle_weight"}
WRITE = {"fused_qk_rope_reshape_and_cache"}
# The kernels of a prompt whose beginning is cached, and of decodes; new prompts need no cache.
NEW = {"flash_attn_varlen_func"}
SHUFFLED, NHD = {"mha_batch_prefill_func", "pa_fwd_asm"} | NEW, {"unified_attention"}
LATENT = NEW | {
    "batched_gemm_bf16_CK",
    "concat_and_cache_mla",
    "get_mla_metadata_info_v1",
    "get_mla_metadata_v1",
    "mla_decode_fwd",
    "mla_prefill_fwd",
    "rope_cached_positions_2c_fwd_inplace",
}
MODELS = [
    Model("llama", 35, DENSE | GATED | WRITE, SHUFFLED, NHD | NEW, {"head_dim": 128}),
    Model("qwen3", 30, DENSE | GATED | WRITE, SHUFFLED, NHD | NEW, {"head_dim": 128}),
    Model("qwen3_moe", 17, DENSE | EXPERTS | WRITE | {"topk_softmax"}, SHUFFLED, NHD | NEW, {"head_dim": 128}),
    Model(
        "deepseek_v3",
        36,
        DENSE | GATED | EXPERTS | LATENT | {"biased_grouped_topk"},
        {"fused_qk_rope_concat_and_cache_mla"},
        {"fused_qk_rope_cat_and_cache_mla"},
        MLA,
    ),
    # Sinks and windows are unified attention's; its experts in bfloat16 are not AITER's.
    Model("gpt_oss", 29, DENSE | WRITE | NHD | {"topk_softmax"}, NEW, set(), {"head_dim": 64}),
    # Half of each head is rotated, so that the write is a kernel of its own.
    Model(
        "glm4_moe",
        17,
        DENSE | GATED | EXPERTS | {"biased_grouped_topk", "rope_cached_positions_2c_fwd_inplace"},
        SHUFFLED | {"reshape_and_cache"},
        NHD | NEW | {"reshape_and_cache_flash"},
        {"head_dim": 128},
    ),
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.family)
def model(request: pytest.FixtureRequest) -> Model:
    return request.param


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 128} | model.sizes
    return make_tiny(model.family, tmp_path_factory.mktemp("on_amd") / model.family, seed=model.seed, **sizes)


@pytest.fixture(scope="module")
def by_torch(folder: Path) -> list[list[int]]:
    """The torch backend's tokens in float32, the same ones that it would give with small errors."""
    platform = Platform.rocm("gfx942", device="cpu")
    torch_only = replace(platform, backends=("torch",), unavailable=(*platform.unavailable, ("aiter", "left out")))
    with use_platform(torch_only):
        outputs = generate(folder, "float32")
    tops = [sorted((top[2] for top in place.top), reverse=True) for output in outputs for place in output["logprobs"]]
    assert min(best - second for best, second, *_ in tops) > CLEAR, "the weights are not clear: take another seed"
    return [output["token_ids"] for output in outputs]


@pytest.mark.parametrize(("arch", "release"), [("gfx942", "git"), ("gfx950", "pypi")])
def test_greedy_tokens_on_aiter_are_those_of_torch(
    model: Model, folder: Path, by_torch: list[list[int]], arch: str, release: str
):
    with amd_machine(arch, release), recorded_calls() as calls:
        outputs = generate(folder, "bfloat16")
    assert calls.names == model.calls | getattr(model, release)
    assert [output["token_ids"] for output in outputs] == by_torch


def generate(folder: Path, dtype: str) -> list[dict[str, Any]]:
    """Chunks of prompts beside decodes, until every request has its tokens."""
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]
    with LLMEngine(str(folder), dtype=dtype, num_kv_blocks=64, num_threads=1, max_num_batched_tokens=64) as engine:
        outputs: list[dict[str, Any]] = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(prompts)
    return outputs
