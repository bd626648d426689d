"""How much of an accelerator a model takes, and what is left for requests, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atom_kernels.protocols import CacheFormat
from atom_models import ModelRequirements, model_requirements, open_checkpoint
from atom_models.requirements import ACCELERATORS, find_accelerators, place
from atom_models.requirements.accelerators import Accelerator, UnknownAcceleratorError, accelerator
from atom_models.requirements.placement import DEVICE_COUNTS, MEMORY_UTILIZATION
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

GB = 10**9
BFLOAT16, FLOAT8 = CacheFormat("bfloat16"), CacheFormat("float8_e4m3fn")


@pytest.fixture(scope="module")
def needs(tiny_llama) -> ModelRequirements:
    return model_requirements(open_checkpoint(tiny_llama))


def test_accelerators_have_the_memory_that_their_makers_print():
    assert {one.name: (one.vendor, one.arch, one.memory_bytes) for one in ACCELERATORS} == {
        "MI300X": ("amd", "gfx942", 192 * GB),
        "MI300A": ("amd", "gfx942", 128 * GB),
        "MI325X": ("amd", "gfx942", 256 * GB),
        "MI355X": ("amd", "gfx950", 288 * GB),
        "H100": ("nvidia", "sm_90", 80 * GB),
        "H200": ("nvidia", "sm_90", 141 * GB),
        "B200": ("nvidia", "sm_100", 180 * GB),
        "GB200": ("nvidia", "sm_100", 186 * GB),
    }
    platforms = {one.name: one.platform for one in ACCELERATORS}
    assert (platforms["MI300X"].vendor, platforms["MI300X"].arch) == ("amd", "gfx942")
    assert (platforms["H100"].vendor, platforms["H100"].arch) == ("nvidia", "sm_90")


def test_each_accelerator_has_its_own_name():
    assert [accelerator(one.name) for one in ACCELERATORS] == [*ACCELERATORS]
    assert len({one.name for one in ACCELERATORS}) == len(ACCELERATORS)


def test_an_accelerator_is_found_by_its_name_in_any_case():
    assert [one.name for one in find_accelerators("mi300x")] == ["MI300X"]
    assert [one.name for one in find_accelerators("H200")] == ["H200"]
    assert find_accelerators("All") == ACCELERATORS
    known = "MI300X, MI300A, MI325X, MI355X, H100, H200, B200, GB200"
    with pytest.raises(UnknownAcceleratorError) as caught:
        find_accelerators("A100")
    assert str(caught.value) == f"no accelerator 'A100'; plans know {known}, or all of them with 'all'"


def put(needs: ModelRequirements, memory: int, num_devices: int = 1, **options):
    accelerator = Accelerator("X", "nvidia", "sm_90", memory)
    return place(needs, accelerator, num_devices, **{"weight_format": "bfloat16", "utilization": 1.0} | options)


def test_nine_tenths_of_an_accelerator_are_for_weights_and_the_cache(needs):
    assert (DEVICE_COUNTS, MEMORY_UTILIZATION) == ((1, 2, 4, 8), 0.9)
    accelerator = find_accelerators("H100")[0]
    placed = place(needs, accelerator, 1, weight_format="bfloat16")
    assert placed is not None
    assert (placed.accelerator, placed.num_devices, placed.cache) == (accelerator, 1, BFLOAT16)
    assert placed.weight_bytes == needs.weight_bytes["bfloat16"]
    assert placed.cache_bytes == 72 * GB - placed.weight_bytes
    assert placed.longest_request == needs.max_model_len
    assert placed.fits


def test_the_longest_request_is_the_longest_whose_cache_fits(needs):
    weights, share = needs.weight_bytes["bfloat16"], needs.on_rank(1)
    platform = find_accelerators("H100")[0].platform
    for length in (0, 1, 16, 17, 33):
        room = share.kv_bytes(length, BFLOAT16, platform) if length else 0
        placed = put(needs, weights + room)
        assert placed.cache_bytes == room
        assert share.kv_bytes(placed.longest_request, BFLOAT16, platform) <= room
        assert share.kv_bytes(placed.longest_request + 1, BFLOAT16, platform) > room
        if room:
            assert put(needs, weights + room - 1).longest_request < length
    assert put(needs, weights - 1).longest_request == 0
    assert put(needs, weights + 10**9).longest_request == needs.max_model_len


def test_copies_of_weights_that_a_platform_keeps_by_head_are_counted_there(tmp_path, monkeypatch):
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 2}
    latents = model_requirements(open_checkpoint(make_tiny("deepseek_v3", tmp_path / "mla", **sizes, **heads)))
    numbers, whole = 2 * 8 * (128 + 128) * 512, latents.weight_bytes["bfloat16"]
    for name, asked, more in (
        ("H100", None, 0),
        ("MI355X", None, 2 * numbers),
        ("MI355X", "ATOM_AITER_FP8_BMM", numbers + 2 * 2 * 4),
        ("MI355X", "ATOM_USE_TRITON_MXFP4_BMM", numbers // 2 + numbers // 32),
    ):
        with monkeypatch.context() as patch:
            if asked:
                patch.setenv(asked, "1")
            placed = place(latents, accelerator(name), 1, weight_format="bfloat16")
        assert placed is not None
        assert placed.weight_bytes == whole + more


def test_a_model_fits_with_a_request_of_1024_tokens_or_of_its_whole_context(needs):
    placed = put(needs, 10**9)
    for longest, context, fits in ((1024, 4096, True), (1023, 4096, False), (100, 100, True), (99, 100, False)):
        other = replace(placed, longest_request=longest, needs=replace(needs, max_model_len=context))
        assert other.fits is fits


def test_requests_are_as_many_as_their_caches_fit(needs):
    placed = put(needs, 10**9)
    each = placed.share.kv_bytes(40, BFLOAT16, placed.accelerator.platform)
    for room, count in ((3 * each, 3), (3 * each - 1, 2), (0, 0), (-each, 0)):
        assert replace(placed, cache_bytes=room).num_requests(40) == count


def test_devices_share_what_comes_out_even(tmp_path):
    needs = model_requirements(open_checkpoint(make_tiny_llama(tmp_path / "m")))
    alone, shared = put(needs, 10**9), put(needs, 10**9, 2)
    assert shared.num_devices == 2
    assert shared.weight_bytes < alone.weight_bytes
    assert shared.weight_bytes == needs.on_rank(2).weight_bytes["bfloat16"]
    platform = alone.accelerator.platform
    assert 2 * shared.share.kv_bytes(64, BFLOAT16, platform) == alone.share.kv_bytes(64, BFLOAT16, platform)
    assert put(needs, 10**9, 3) is None


def test_a_cache_of_half_the_width_holds_twice_the_tokens(needs):
    platform = find_accelerators("H100")[0].platform
    share = needs.on_rank(1)
    wide, half = (share.kv_bytes(64, cache, platform) for cache in (BFLOAT16, FLOAT8))
    assert wide == 2 * half == 64 * 2 * 2 * needs.num_layers * 2 * 16  # keys and values of two heads of 16


def test_of_a_mixture_a_token_passes_through_the_experts_that_it_chooses(tmp_path):
    checkpoint = open_checkpoint(make_tiny("mixtral", tmp_path / "m"))
    needs, config = model_requirements(checkpoint), checkpoint.config
    expert = 3 * config["hidden_size"] * config["intermediate_size"]
    idle = config["num_local_experts"] - config["num_experts_per_tok"]
    assert idle > 0
    assert needs.num_parameters - needs.num_active_parameters == needs.num_layers * idle * expert
