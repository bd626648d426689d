"""Writes of keys and values into paged caches, emulated."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
BLOCKS, BLOCK, HEADS, DIM = 4, 16, 2, 32
SLOTS = torch.tensor([5, -1, 40, 63, 0])


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def packed(dtype: torch.dtype = BF16, asm_layout: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = 16 // dtype.itemsize
    values = (BLOCK // x, DIM, x) if asm_layout else (DIM, BLOCK)
    shapes = (BLOCKS, HEADS, DIM // x, BLOCK, x), (BLOCKS, HEADS, *values)
    return tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)


def read_keys(cache: torch.Tensor) -> torch.Tensor:
    """Keys of every slot, ``[slots, H, D]``."""
    return cache.permute(0, 3, 1, 2, 4).reshape(BLOCKS * BLOCK, HEADS, DIM)


def read_values(cache: torch.Tensor) -> torch.Tensor:
    if cache.dim() == 5:
        return cache.permute(0, 2, 4, 1, 3).reshape(BLOCKS * BLOCK, HEADS, DIM)
    return cache.permute(0, 3, 1, 2).reshape(BLOCKS * BLOCK, HEADS, DIM)


def arguments(**changes) -> dict:
    key_cache, value_cache = packed()
    given = {
        "key": normal(5, HEADS, DIM),
        "value": normal(5, HEADS, DIM),
        "key_cache": key_cache,
        "value_cache": value_cache,
        "slot_mapping": SLOTS,
        "kv_cache_dtype": "auto",
    }
    return given | changes


@pytest.mark.parametrize("asm_layout", [False, True])
def test_tokens_lie_at_their_slots(aiter: ModuleType, asm_layout: bool):
    key_cache, value_cache = packed(asm_layout=asm_layout)
    qkv = normal(5, 6 * HEADS * DIM)
    key, value = (part.view(5, HEADS, DIM) for part in qkv.split(HEADS * DIM, dim=1)[2:4])
    given = arguments(key=key, value=value, key_cache=key_cache, value_cache=value_cache)
    aiter.reshape_and_cache(**given, asm_layout=asm_layout)
    written = SLOTS[SLOTS >= 0]
    for cache, x in ((read_keys(key_cache), key), (read_values(value_cache), value)):
        assert torch.equal(cache[written], x[SLOTS >= 0])
        assert cache.count_nonzero() == x[SLOTS >= 0].count_nonzero()


def test_fp8_is_divided_by_the_scale(aiter: ModuleType):
    key_cache, value_cache = packed(aiter.dtypes.fp8)
    given = arguments(key_cache=key_cache, value_cache=value_cache, kv_cache_dtype="fp8")
    scales = {"k_scale": torch.tensor([0.25]), "v_scale": torch.tensor([2.0])}
    given["key"][0, 0, 0] = 1000.0
    aiter.reshape_and_cache(**given, **scales)
    keys, values = read_keys(key_cache.float()) * 0.25, read_values(value_cache.float()) * 2
    largest = torch.finfo(aiter.dtypes.fp8).max
    torch.testing.assert_close(keys[5, 0, 0], torch.tensor(largest * 0.25))
    torch.testing.assert_close(keys[63], given["key"][3].float(), rtol=0.07, atol=0.01)
    torch.testing.assert_close(values[40], given["value"][2].float(), rtol=0.07, atol=0.01)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"slot_mapping": torch.tensor([5, -1, 40, 64, 0])}, SilentlyWrong, "slots reach 64"),
        ({"slot_mapping": torch.tensor([5, -1, 40, 5, 0])}, SilentlyWrong, "race"),
        ({"slot_mapping": torch.tensor([5, 1, 2])}, SilentlyWrong, "slot_mapping has shape"),
        ({"slot_mapping": SLOTS.double()}, (SilentlyWrong, Refused), "slot_mapping is"),
        ({"key": normal(HEADS, 5, DIM).transpose(0, 1)}, SilentlyWrong, "key has strides"),
        ({"value": normal(5, HEADS, DIM, dtype=torch.float16)}, SilentlyWrong, "value is"),
        ({"value": normal(5, 1, DIM)}, SilentlyWrong, "value has shape"),
        ({"key_cache": packed()[0].float()}, SilentlyWrong, "key_cache is"),
        ({"key_cache": packed()[0].transpose(1, 2)}, SilentlyWrong, "key_cache has shape"),
        ({"key_cache": torch.zeros(BLOCKS, HEADS, DIM // 4, BLOCK, 4, dtype=BF16)}, SilentlyWrong, "x = 4"),
        ({"value_cache": packed(asm_layout=True)[1]}, SilentlyWrong, "value_cache has shape"),
        ({"value_cache": packed()[1].transpose(2, 3)}, SilentlyWrong, "value_cache has shape"),
        ({"kv_cache_dtype": "int8"}, Refused, "Unsupported"),
        ({"slot_mapping": SLOTS.repeat_interleave(2)[::2]}, SilentlyWrong, "slot_mapping has strides"),
        ({"key": normal(5, HEADS, DIM).double()}, Refused, "key: torch.float64"),
        ({"key": normal(5, HEADS * DIM)}, SilentlyWrong, "key has shape"),
        ({"value": normal(HEADS, 5, DIM).transpose(0, 1)}, SilentlyWrong, "value has strides"),
        ({"key_cache": torch.zeros(BLOCKS, HEADS, 2, BLOCK, 8, dtype=BF16)}, SilentlyWrong, "key_cache has shape"),
        (
            {"key_cache": torch.zeros(BLOCKS, HEADS, BLOCK, 4, 8, dtype=BF16).mT.mT.transpose(2, 3)},
            SilentlyWrong,
            "strides",
        ),
        ({"k_scale": torch.ones(2)}, SilentlyWrong, "k_scale has 2"),
        ({"kv_cache_dtype": "fp8"}, SilentlyWrong, "key_cache is torch.bfloat16"),
        ({"asm_layout": True}, SilentlyWrong, "value_cache has shape"),
    ],
)
def test_what_the_packed_write_misreads(aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.reshape_and_cache(**arguments(**changes))


def test_a_transposed_cache_of_the_same_shape_is_found(aiter: ModuleType):
    square = torch.zeros(BLOCKS, HEADS, 16, 16, dtype=BF16).transpose(2, 3)
    keys = torch.zeros(BLOCKS, HEADS, 2, 16, 8, dtype=BF16)
    given = arguments(key=normal(5, HEADS, 16), value=normal(5, HEADS, 16), key_cache=keys, value_cache=square)
    with pytest.raises(SilentlyWrong, match="value_cache has strides"):
        aiter.reshape_and_cache(**given)


@pytest.mark.parametrize(("head_dim", "block"), [(36, 16), (32, 12)])
def test_heads_and_blocks_are_multiples_of_16_bytes(aiter: ModuleType, head_dim: int, block: int):
    keys = torch.zeros(BLOCKS, HEADS, head_dim // 8, block, 8, dtype=BF16)
    values = torch.zeros(BLOCKS, HEADS, block // 8, head_dim, 8, dtype=BF16)
    tokens = {name: normal(5, HEADS, head_dim) for name in ("key", "value")}
    with pytest.raises(SilentlyWrong, match="multiple of x"):
        aiter.reshape_and_cache(**arguments(**tokens, key_cache=keys, value_cache=values), asm_layout=True)


def test_slots_of_32_bits(git_aiter: ModuleType, pypi_aiter: ModuleType):
    git_aiter.reshape_and_cache(**arguments(slot_mapping=SLOTS.int()))
    with pytest.raises(Refused, match="slot_mapping is torch.int32"):
        pypi_aiter.reshape_and_cache(**arguments(slot_mapping=SLOTS.int()))
    flash = {name: torch.zeros(BLOCKS, BLOCK, HEADS, DIM, dtype=BF16) for name in ("key_cache", "value_cache")}
    scales = {"k_scale": torch.ones(1), "v_scale": torch.ones(1)}
    with pytest.raises(SilentlyWrong, match="slot_mapping is torch.int32"):
        git_aiter.reshape_and_cache_flash(**arguments(slot_mapping=SLOTS.int()) | flash | scales)


def test_the_fp8_of_the_other_architecture_is_found(aiter: ModuleType):
    key_cache, value_cache = packed(torch.float8_e4m3fn)
    with pytest.raises(SilentlyWrong, match="float8_e4m3fn,"):
        aiter.reshape_and_cache(**arguments(key_cache=key_cache, value_cache=value_cache, kv_cache_dtype="fp8"))


def test_flash_blocks_may_lie_apart(aiter: ModuleType):
    caches = torch.zeros(BLOCKS, 2, BLOCK, HEADS, DIM, dtype=BF16)
    given = arguments(key_cache=caches[:, 0], value_cache=caches[:, 1])
    aiter.reshape_and_cache_flash(**given, k_scale=torch.ones(1), v_scale=torch.ones(1))
    assert torch.equal(caches[2, 0, 8], given["key"][2])
    assert torch.equal(caches[3, 1, 15], given["value"][3])
    assert caches.count_nonzero() == 2 * 4 * HEADS * DIM


@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
def test_flash_blocks_are_contiguous_each(aiter: ModuleType, name: str):
    by_head = torch.zeros(BLOCKS, HEADS, BLOCK, DIM, dtype=BF16).transpose(1, 2)
    plain = torch.zeros(BLOCKS, BLOCK, HEADS, DIM, dtype=BF16)
    caches = {"key_cache": plain, "value_cache": plain} | {name: by_head}
    with pytest.raises(SilentlyWrong, match="cache has strides"):
        aiter.reshape_and_cache_flash(**arguments() | caches, k_scale=torch.ones(1), v_scale=torch.ones(1))


def test_flash_caches_have_one_stride_and_real_scales(aiter: ModuleType):
    plain, apart = (torch.zeros(BLOCKS, n, BLOCK, HEADS, DIM, dtype=BF16)[:, 0] for n in (1, 2))
    with pytest.raises(Refused, match="different strides"):
        aiter.reshape_and_cache_flash(*arguments(key_cache=plain, value_cache=apart).values(), *torch.ones(2, 1))
    with pytest.raises(TypeError, match="k_scale"):
        aiter.reshape_and_cache_flash(*arguments(key_cache=plain, value_cache=plain).values(), None, torch.ones(1))
    with pytest.raises(SilentlyWrong, match="value_cache has shape"):
        aiter.reshape_and_cache_flash(
            *arguments(key_cache=plain, value_cache=plain[..., :9]).values(), *torch.ones(2, 1)
        )
    with pytest.raises(SilentlyWrong, match="value_cache is"):
        aiter.reshape_and_cache_flash(*arguments(key_cache=plain, value_cache=plain.half()).values(), *torch.ones(2, 1))
    with pytest.raises((Refused, SilentlyWrong), match="scale is"):
        aiter.reshape_and_cache_flash(
            *arguments(key_cache=plain, value_cache=plain).values(), *torch.ones(2, 1, dtype=torch.float64)
        )


def test_every_write_looks_at_its_tokens(aiter: ModuleType):
    given = list(arguments(key=normal(5, HEADS * DIM)).values())
    for write in (aiter.reshape_and_cache, aiter.reshape_and_cache_flash):
        with pytest.raises(SilentlyWrong, match="key has shape"):
            write(*given, *torch.ones(2, 1))
    with pytest.raises(SilentlyWrong, match="key has shape"):
        aiter.reshape_and_cache_with_pertoken_quant(*given[:4], torch.ones(1), torch.ones(1), SLOTS, False)


@pytest.mark.parametrize("asm_layout", [False, True])
def test_each_head_of_a_token_has_its_scale(aiter: ModuleType, asm_layout: bool):
    key_cache, value_cache = packed(aiter.dtypes.fp8, asm_layout)
    shape = (BLOCKS, HEADS, BLOCK) if asm_layout else (HEADS, BLOCKS * BLOCK)
    scales = {f"{name}_dequant_scales": torch.zeros(shape) for name in "kv"}
    given = arguments(key_cache=key_cache, value_cache=value_cache, **scales, asm_layout=asm_layout)
    del given["kv_cache_dtype"]
    aiter.reshape_and_cache_with_pertoken_quant(**given)
    for x, cache, scale in (
        (given["key"], read_keys(key_cache), scales["k_dequant_scales"]),
        (given["value"], read_values(value_cache), scales["v_dequant_scales"]),
    ):
        by_slot = scale.transpose(1, 2).reshape(-1, HEADS) if asm_layout else scale.t()
        largest = torch.finfo(aiter.dtypes.fp8).max
        torch.testing.assert_close(by_slot[40], x[2].float().abs().amax(-1) / largest)
        torch.testing.assert_close(cache[40].float() * by_slot[40, :, None], x[2].float(), rtol=0.07, atol=0.01)
        assert by_slot.count_nonzero() == 4 * HEADS


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"asm_layout": True, "k_dequant_scales": torch.zeros(HEADS, 64)}, SilentlyWrong, "k_dequant_scales has shape"),
        ({"v_dequant_scales": torch.zeros(HEADS, 64).bfloat16()}, SilentlyWrong, "v_dequant_scales is"),
        ({"k_dequant_scales": torch.zeros(64, HEADS).t()}, SilentlyWrong, "k_dequant_scales has strides"),
        (
            {"k_dequant_scales": torch.zeros(HEADS, 60), "v_dequant_scales": torch.zeros(HEADS, 60)},
            SilentlyWrong,
            "no place",
        ),
        ({"key_cache": packed()[0]}, Refused, "key_cache"),
        ({"value_cache": packed(torch.int8)[1]}, SilentlyWrong, "value_cache is"),
        ({"value_cache": packed(torch.float8_e4m3fnuz, True)[1]}, SilentlyWrong, "value_cache has shape"),
        ({"slot_mapping": SLOTS.int()}, (Refused, SilentlyWrong), "slot_mapping is"),
        ({"key": normal(5, HEADS, 1024), "value": normal(5, HEADS, 1024)}, Refused, "head_size"),
    ],
)
def test_what_the_write_with_scales_misreads(aiter: ModuleType, changes: dict, error: type, words: str):
    asm_layout = changes.get("asm_layout", False)
    key_cache, value_cache = packed(aiter.dtypes.fp8, asm_layout)
    scales = {f"{name}_dequant_scales": torch.zeros(HEADS, BLOCKS * BLOCK) for name in "kv"}
    given = arguments(key_cache=key_cache, value_cache=value_cache, **scales, asm_layout=asm_layout) | changes
    del given["kv_cache_dtype"]
    with pytest.raises(error, match=words):
        aiter.reshape_and_cache_with_pertoken_quant(**given)


def latent(**changes) -> dict:
    given = {
        "kv_c": normal(6, 24),
        "k_pe": normal(6, 8),
        "kv_cache": torch.zeros(BLOCKS, BLOCK, 32, dtype=BF16),
        "slot_mapping": SLOTS,
        "kv_cache_dtype": "auto",
        "scale": torch.tensor([0.5]),
    }
    return given | changes


def test_latent_rows_are_joined(aiter: ModuleType):
    joined = normal(6, 40)
    given = latent(kv_c=joined[:, :24], k_pe=joined[:, 32:])
    aiter.concat_and_cache_mla(**given)
    rows = torch.cat((joined[:, :24], joined[:, 32:]), dim=1)
    flat = given["kv_cache"].view(-1, 32)
    assert torch.equal(flat[SLOTS[[0, 2, 3, 4]]], rows[[0, 2, 3, 4]])
    assert flat.count_nonzero() == 4 * 32
    cache = torch.zeros(BLOCKS, BLOCK, 32, dtype=aiter.dtypes.fp8)
    aiter.concat_and_cache_mla(**given | {"kv_cache": cache, "kv_cache_dtype": "fp8"})
    torch.testing.assert_close(cache.view(-1, 32)[63].float() * 0.5, rows[3].float(), rtol=0.07, atol=0.01)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kv_c": normal(6, 8), "k_pe": normal(6, 8)}, Refused, "R \\+ P"),
        ({"kv_c": normal(4, 24)}, SilentlyWrong, "more slots"),
        ({"k_pe": normal(6, 8, dtype=torch.float16)}, SilentlyWrong, "k_pe is"),
        ({"kv_c": normal(24, 6).t()}, SilentlyWrong, "kv_c has strides"),
        ({"kv_cache": torch.zeros(BLOCKS, BLOCK, 32)}, SilentlyWrong, "kv_cache is"),
        ({"slot_mapping": SLOTS + 1000}, SilentlyWrong, "slots reach"),
        ({"scale": torch.ones(2)}, SilentlyWrong, "2 elements"),
        ({"kv_c": normal(6, 1, 24)}, SilentlyWrong, "kv_c has shape"),
        ({"k_pe": normal(6, 8, 1)}, SilentlyWrong, "k_pe has shape"),
        ({"kv_cache": torch.zeros(BLOCKS * BLOCK, 32, dtype=BF16)}, SilentlyWrong, "kv_cache has shape"),
        ({"slot_mapping": SLOTS.int()}, (Refused, SilentlyWrong), "slot_mapping is"),
    ],
)
def test_what_the_latent_write_misreads(aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.concat_and_cache_mla(**latent(**changes))
