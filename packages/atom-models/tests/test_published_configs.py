"""Sizes of published models from their configs alone, against what their publishers print."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from atom_kernels.protocols import CacheFormat
from atom_models import ModelRequirements, model_requirements, open_checkpoint
from atom_models.quantization import ROUNDED_TO
from atom_models.requirements import ACCELERATORS, RankShare, find_accelerators, place
from published_configs import NAMES, write_published_config

BFLOAT16 = CacheFormat("bfloat16")
# Parameters that the publishers' weights hold: exact where the files say so, else as their pages round them.
EXACT = {
    "deepseek-r1": 671_026_419_200,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "qwen3-vl-8b": 8_767_123_696,
}
ROUNDED = {
    "deepseek-v3.2": 671.9e9,
    "glm-5": 744e9,
    "glm-4.5": 355e9,
    "kimi-k2": 1.03e12,
    "kimi-k2.5": 1.03e12,
    "kimi-linear-48b-a3b": 49e9,
    "mistral-small-3.1-24b": 24.0e9,
    "qwen3-next-80b-a3b": 80e9,
    "qwen3.5-27b": 27.36e9,
    "qwen3.5-397b-a17b": 397e9,
}
ACTIVE = {
    "deepseek-r1": 37e9,
    "deepseek-v3.2": 37e9,
    "glm-5": 40e9,
    "glm-4.5": 32e9,
    "kimi-k2": 32e9,
    "kimi-k2.5": 32e9,
    "mixtral-8x7b": 12.9e9,
    "qwen3-235b-a22b": 22e9,
    "qwen3-30b-a3b": 3.3e9,
    "qwen3-vl-30b-a3b": 3.3e9,
    "qwen3.5-397b-a17b": 17e9,
}
# Bytes of the published weight files.
# Latent attention keeps what it absorbs as plain numbers: a byte more for each than in the files.
ABSORBED_GB = 61 * 512 * 128 * (128 + 128) / 1e9
PUBLISHED_GB = {
    "gpt-oss-120b": ("mxfp4", 65.25),
    "gpt-oss-20b": ("mxfp4", 13.76),
    "deepseek-r1": ("fp8", 671 + ABSORBED_GB),
}
# KV heads x head size x 2 x layers (or the latent x layers), two bytes each.
KV_BYTES = {
    "deepseek-r1": 61 * (512 + 64) * 2,
    "deepseek-v3.2": 61 * (512 + 64) * 2,
    "glm-5": 78 * (512 + 64) * 2,
    "glm-4.5": 92 * 2 * 8 * 128 * 2,
    "gpt-oss-120b": 36 * 2 * 8 * 64 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,
    "kimi-k2": 61 * (512 + 64) * 2,
    "kimi-k2.5": 61 * (512 + 64) * 2,
    "kimi-linear-48b-a3b": 7 * (512 + 64) * 2,
    "llama-3.1-70b": 80 * 2 * 8 * 128 * 2,
    "llama-3.1-8b": 32 * 2 * 8 * 128 * 2,
    "mistral-small-3.1-24b": 40 * 2 * 8 * 128 * 2,
    "mixtral-8x7b": 32 * 2 * 8 * 128 * 2,
    "qwen3-235b-a22b": 94 * 2 * 4 * 128 * 2,
    "qwen3-30b-a3b": 48 * 2 * 4 * 128 * 2,
    "qwen2.5-vl-7b": 28 * 2 * 4 * 128 * 2,
    "qwen3-next-80b-a3b": 12 * 2 * 2 * 256 * 2,
    "qwen3-vl-30b-a3b": 48 * 2 * 4 * 128 * 2,
    "qwen3-vl-8b": 36 * 2 * 8 * 128 * 2,
    "qwen3.5-27b": 16 * 2 * 4 * 256 * 2,
    "qwen3.5-397b-a17b": 15 * 2 * 2 * 256 * 2,
}
# Index keys x layers, which stay in bfloat16.
INDEX_BYTES = {"deepseek-v3.2": 61 * 128 * 2, "glm-5": 78 * 128 * 2}
# Delta nets x (value heads x 128 x 128 in float32 + channels x 3 inputs in bfloat16), whatever a request's length.
STATE_BYTES = {
    "kimi-linear-48b-a3b": 20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2),
    "qwen3-next-80b-a3b": 36 * (32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 3 * 2),
    "qwen3.5-27b": 48 * (48 * 128 * 128 * 4 + (2 * 16 + 48) * 128 * 3 * 2),
    "qwen3.5-397b-a17b": 45 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2),
}
CONTEXTS = {
    "deepseek-r1": 163840,
    "deepseek-v3.2": 163840,
    "glm-5": 202752,
    "kimi-k2.5": 262144,
    "mixtral-8x7b": 32768,
    "qwen3-235b-a22b": 40960,
    "qwen2.5-vl-7b": 128000,
    "qwen3-30b-a3b": 40960,
    "qwen3-vl-30b-a3b": 262144,
    "qwen3-vl-8b": 262144,
    **dict.fromkeys(STATE_BYTES, 262144),
    "kimi-linear-48b-a3b": 1048576,
}


@functools.cache
def needs_of(name: str) -> ModelRequirements:
    with tempfile.TemporaryDirectory() as folder:
        return model_requirements(open_checkpoint(write_published_config(name, Path(folder))))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_as_many_as_published(name: str):
    needs = needs_of(name)
    # Correction biases, which files count among the weights or not, are a few thousand.
    if name in EXACT:
        assert 0 <= needs.num_parameters - EXACT[name] <= 20_000
    else:
        assert needs.num_parameters == pytest.approx(ROUNDED[name], rel=0.01)


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_passes_as_many_as_published(name: str):
    assert needs_of(name).num_active_parameters == pytest.approx(ACTIVE[name], rel=0.06)


@pytest.mark.parametrize("name", PUBLISHED_GB)
def test_quantized_files_have_the_published_size(name: str):
    needs, (published, size) = needs_of(name), PUBLISHED_GB[name]
    assert needs.published_format == published
    assert needs.weight_bytes[published] == pytest.approx(size * 1e9, rel=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_takes_the_cache_that_heads_and_layers_say(name: str):
    needs = needs_of(name)
    first, second = (needs.kv_bytes(count, BFLOAT16) for count in (1, 2))
    assert second - first == KV_BYTES[name] + INDEX_BYTES.get(name, 0)
    assert first == needs.kv_bytes_per_token[BFLOAT16] == second - first + STATE_BYTES.get(name, 0)
    assert (first - needs.kv_bytes_per_token[CacheFormat("float8_e4m3fn")]) * 2 == KV_BYTES[name]
    assert needs.max_model_len == CONTEXTS.get(name, 131072)


# Which of 1, 2, 4 and 8 devices hold the bfloat16 weights and some cache: from the published sizes, by hand.
FITS = {
    ("llama-3.1-8b", "H100"): [1, 2, 4, 8],  # 16 GB
    ("llama-3.1-70b", "MI300X"): [1, 2, 4, 8],  # 141 GB
    ("llama-3.1-70b", "H100"): [2, 4, 8],
    ("mixtral-8x7b", "H100"): [2, 4, 8],  # 93 GB
    ("qwen3-235b-a22b", "MI300X"): [4, 8],  # 470 GB
    ("qwen3-235b-a22b", "H100"): [8],
    ("gpt-oss-120b", "MI355X"): [1, 2, 4, 8],  # 234 GB
    ("glm-4.5", "MI300X"): [8],  # 706 GB
    ("glm-4.5", "H200"): [8],
    ("glm-4.5", "H100"): [],
    ("deepseek-r1", "MI300X"): [8],  # 1342 GB
    ("deepseek-r1", "H200"): [],
    ("kimi-k2", "MI300X"): [],  # 2053 GB
    ("kimi-k2", "MI355X"): [8],
}
# The other models have the kinds of layers of one of these, and are shared by the same rules.
SHARED = sorted({name for name, _ in FITS} | {"gpt-oss-20b", "glm-5", "kimi-linear-48b-a3b", "qwen3-next-80b-a3b"})


@pytest.mark.parametrize("name", SHARED)
def test_what_fits_grows_with_devices_and_memory(name: str):
    needs = needs_of(name)
    for accelerator in ACCELERATORS:
        placements = [place(needs, accelerator, count, weight_format="bfloat16") for count in (1, 2, 4, 8)]
        shared = [placement for placement in placements if placement]
        assert len(shared) == len(placements)
        longest = [placement.longest_request for placement in shared]
        assert longest == sorted(longest)
        for placement in shared:
            used = placement.weight_bytes + placement.num_requests(4096) * placement.share.kv_bytes(4096, BFLOAT16)
            assert not placement.fits or used <= 0.9 * accelerator.memory_bytes


@pytest.mark.parametrize(("name", "accelerator"), FITS)
def test_published_models_fit_where_their_sizes_say(name: str, accelerator: str):
    needs, (device,) = needs_of(name), find_accelerators(accelerator)
    placements = [place(needs, device, count, weight_format="bfloat16") for count in (1, 2, 4, 8)]
    found = [placement.num_devices for placement in placements if placement and placement.fits]
    assert found == FITS[name, accelerator]


@pytest.mark.parametrize("name", NAMES)
def test_formats_are_those_that_can_be_loaded_and_the_published_one(name: str):
    needs = needs_of(name)
    rounded = [one for one in ROUNDED_TO if one != needs.published_format]
    assert list(needs.weight_bytes) == ["float32", "bfloat16", *rounded, *filter(None, [needs.published_format])]


def llama_in_fp8(folder: Path, **fields: Any) -> ModelRequirements:
    path = write_published_config("llama-3.1-8b", folder) / "config.json"
    given = {"quant_method": "fp8", "weight_block_size": [128, 128], **fields}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": given}))
    return model_requirements(open_checkpoint(folder))


def test_layers_that_a_quantizer_left_out_have_their_size_in_bfloat16(tmp_path: Path):
    needs, num_layers = needs_of("llama-3.1-8b"), 32
    all_of_them = llama_in_fp8(tmp_path).weight_bytes["fp8"]
    linears = needs.num_linear_parameters
    assert all_of_them == 2 * (needs.num_parameters - linears) + linears + linears // 128**2 * 4
    left_out = llama_in_fp8(tmp_path, modules_to_not_convert=["model.layers.0"])
    assert left_out.weight_bytes["fp8"] == all_of_them + (linears - linears // 128**2 * 4) // num_layers


def test_a_published_format_that_is_not_read_is_not_taken_for_the_one_that_weights_are_rounded_to(tmp_path: Path):
    needs = llama_in_fp8(tmp_path, fmt="e5m2")
    assert needs.published_format == "fp8"
    assert "fp8" not in needs.weight_bytes
    assert "fmt 'e5m2'" in str(needs.refusal)


def test_ranks_share_what_is_stored(tmp_path: Path):
    needs = llama_in_fp8(tmp_path)
    half, quarter = (needs.on_rank(num_ranks) for num_ranks in (2, 4))
    assert half is not None
    assert quarter is not None
    norms = 65 * 4096 * 2
    assert half.weight_bytes["fp8"] == (needs.weight_bytes["fp8"] - norms) // 2 + norms
    assert quarter.weight_bytes["fp8"] == (needs.weight_bytes["fp8"] - norms) // 4 + norms


GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 256,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}


def test_a_head_that_is_tied_by_default_counts_once(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_1B))
    needs = model_requirements(open_checkpoint(tmp_path))
    assert needs.num_parameters == 999_885_952
    assert [(group.spec.window, group.num_layers) for group in needs.cache_groups] == [(None, 4), (512, 22)]


def test_a_first_mistral_without_a_window_in_its_config_has_one(tmp_path: Path):
    config = json.loads((write_published_config("llama-3.1-8b", tmp_path) / "config.json").read_text())
    for window, kept in (({}, 4096), ({"sliding_window": None}, None)):
        changed = config | {"architectures": ["MistralForCausalLM"], "rope_scaling": None} | window
        (tmp_path / "config.json").write_text(json.dumps(changed))
        assert [group.spec.window for group in model_requirements(open_checkpoint(tmp_path)).cache_groups] == [kept]


def share_of(name: str, ranks: int) -> RankShare:
    share = needs_of(name).on_rank(ranks)
    assert share is not None
    return share


def test_ranks_share_heads_until_each_has_one():
    needs = needs_of("llama-3.1-8b")
    whole = needs.kv_bytes(1000, BFLOAT16)
    assert whole == 1000 * KV_BYTES["llama-3.1-8b"]
    shares = [share_of("llama-3.1-8b", ranks).kv_bytes(1000, BFLOAT16) * ranks / whole for ranks in (1, 2, 8, 16)]
    assert shares == [1, 1, 1, 2]


def rank_parameters(name: str, ranks: int) -> int:
    return share_of(name, ranks).weight_bytes["bfloat16"] // 2


def test_each_rank_holds_norms_routers_and_the_way_into_a_latent():
    llama, deepseek = needs_of("llama-3.1-8b").num_parameters, needs_of("deepseek-r1").num_parameters
    whole = (2 * 32 + 1) * 4096
    assert rank_parameters("llama-3.1-8b", 8) == whole + (llama - whole) // 8
    norms, down = 2 * 7168 + 1536 + 512, 7168 * (1536 + 512 + 64)
    whole = 61 * (norms + down) + 58 * (7168 + 1) * 256 + 7168
    assert rank_parameters("deepseek-r1", 8) == whole + (deepseek - whole) // 8


def test_ranks_beyond_the_kv_heads_repeat_their_weights():
    whole, kv = (2 * 32 + 1) * 4096, 32 * 2 * 8 * 128 * 4096
    shared = needs_of("llama-3.1-8b").num_parameters - whole - kv
    assert rank_parameters("llama-3.1-8b", 16) == whole + shared // 16 + kv // 8


def test_a_rank_holds_rows_of_its_own_of_the_sinks_and_whole_biases_of_experts():
    needs, layers, hidden, experts = needs_of("gpt-oss-20b"), 24, 2880, 32
    # Norms, routers, and the biases of what is summed over ranks, which the first rank has.
    whole = layers * (2 * hidden + experts * (hidden + 1) + hidden + experts * hidden) + hidden
    assert rank_parameters("gpt-oss-20b", 8) == whole + (needs.num_parameters - whole) // 8


def test_attention_and_experts_are_rounded_and_routers_are_not():
    attention, experts = 2 * (4096 * 4096 + 4096 * 1024), 8 * 3 * 4096 * 14336
    assert needs_of("mixtral-8x7b").num_linear_parameters == 32 * (attention + experts)


def test_each_rank_holds_the_whole_latent():
    needs = needs_of("deepseek-r1")
    assert share_of("deepseek-r1", 8).kv_bytes(1000, BFLOAT16) == needs.kv_bytes(1000, BFLOAT16)


def test_layers_with_a_window_stop_growing_behind_it():
    needs = needs_of("gpt-oss-20b")
    per_layer = 2 * 8 * 64 * 2
    assert needs.kv_bytes(100, BFLOAT16) == 100 * 24 * per_layer
    assert needs.kv_bytes(50_000, BFLOAT16) == (50_000 * 12 + (128 + 16) * 12) * per_layer


def test_a_cache_has_the_bytes_of_the_layout_that_each_accelerator_chooses():
    """AMD's kernels keep a scale of four bytes beside each float8 key and value of a head."""
    needs, (heads, head_dim, layers) = needs_of("llama-3.1-8b"), (8, 128, 32)
    by_name = {accelerator.name: accelerator.platform for accelerator in ACCELERATORS}
    share = needs.on_rank(8)
    assert share is not None
    each = {name: share.kv_bytes(1, CacheFormat("float8_e4m3fn"), platform) for name, platform in by_name.items()}
    plain, with_scales = layers * 2 * heads // 8 * head_dim, layers * 2 * heads // 8 * (head_dim + 4)
    amd = dict.fromkeys(("MI300X", "MI300A", "MI325X", "MI355X"), with_scales)
    assert each == amd | dict.fromkeys(("H100", "H200", "B200", "GB200"), plain)
    assert {share.kv_bytes(1, BFLOAT16, platform) for platform in by_name.values()} == {2 * plain}


def test_heads_that_devices_cannot_share_are_not_placed():
    needs = needs_of("llama-3.1-8b")
    assert place(needs, ACCELERATORS[0], 3, weight_format="bfloat16") is None


def test_sizes_that_devices_cannot_share_are_not_placed(tmp_path: Path):
    config = json.loads((write_published_config("llama-3.1-8b", tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 14340}))
    needs = model_requirements(open_checkpoint(tmp_path))
    placements = {count: place(needs, ACCELERATORS[0], count, weight_format="bfloat16") for count in (4, 8)}
    assert [count for count, placement in placements.items() if placement] == [4]


def test_accelerators_are_found_in_any_case_and_others_named():
    assert [found.name for found in find_accelerators("mi300x")] == ["MI300X"]
    assert find_accelerators("all") == ACCELERATORS
    with pytest.raises(ValueError, match="no accelerator 'A100'; plans know MI300X"):
        find_accelerators("A100")
