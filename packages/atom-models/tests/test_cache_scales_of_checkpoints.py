"""Scales of an fp8 KV cache in quantized checkpoints: who takes them, in which spelling, on which rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import torch

from atom_kernels.native import native_unavailable
from atom_kernels.platform import Facts, Platform, platform_from_facts
from atom_kernels.protocols import CacheFormat, SingleRank
from atom_models import BuildContext, CheckpointError, build_model, load_model, open_checkpoint
from atom_models.groups import Groups
from atom_models.model import mixer_layers
from quantized_checkpoints import PUBLISHED, change, set_config, write_quantized
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

if TYPE_CHECKING:
    from atom_kernels.protocols import Collectives

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [27]]


@pytest.fixture(scope="module")
def plain_llama(tmp_path_factory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("plain") / "m", hidden=96, intermediate=160, kv_heads=2)


def test_scales_of_an_fp8_cache_are_passed_over_with_a_line(plain_llama: Path, tmp_path: Path, caplog):
    quantized, twin = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    names = ("self_attn.k_scale", "self_attn.v_proj.v_scale", "self_attn.q_proj.output_scale")
    change(quantized, **{f"model.layers.0.{name}": torch.tensor(2.0) for name in names})
    ours, exact = (load_model(folder, "float32", progress=False).logits(PROMPTS) for folder in (quantized, twin))
    assert torch.allclose(torch.cat(ours), torch.cat(exact), atol=2e-4)
    assert "KV cache" not in caplog.text, "nobody asked for such a cache"
    others, _ = write_quantized(tmp_path / "others", plain_llama, PUBLISHED["fp8 tensors"])
    change(others, **{"model.layers.0.self_attn.q_proj.output_scale": torch.tensor(2.0)})
    load_model(others, "float32", kv_cache_dtype="fp8", progress=False)
    assert f"{others} has 1 scales for an fp8 KV cache: not used, the scale is 1" in caplog.text


def fp8_cache_logits(folder: Path) -> torch.Tensor:
    return torch.cat(load_model(folder, "float32", kv_cache_dtype="fp8", progress=False).logits(PROMPTS))


needs_the_native_kernels = pytest.mark.skipif(native_unavailable() is not None, reason="no C compiler")


@needs_the_native_kernels
@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.qkv_proj.k_scale", "self_attn.qkv_proj.v_scale"),
        ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
        ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
        ("self_attn.k_cache.scale", "self_attn.v_cache.scale"),
        ("self_attn.kv_scale",),
        ("self_attn.v_scale",),
    ],
    ids=str,
)
def test_an_fp8_cache_has_the_scales_of_the_checkpoint(names, plain_llama: Path, tmp_path: Path, caplog):
    """A scale changes what is rounded away, no more; and one by which the cache's numbers vanish changes all."""
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    plain = fp8_cache_logits(quantized)
    for scale, distances in ((2.0**-4, (1e-4, 0.3)), (2.0**30, (0.5, 100.0))):
        every = {f"model.layers.{layer}.{name}": torch.tensor(scale) for layer in range(2) for name in names}
        change(quantized, **every | {"model.layers.0.self_attn.prob_scale": torch.tensor(0.5)})  # not of the cache
        assert distances[0] < (fp8_cache_logits(quantized) - plain).abs().max() < distances[1]
    assert "for an fp8 KV cache" not in caplog.text


STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


@needs_the_native_kernels
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kv_cache_scheme": STATIC}, "quantization_config.kv_cache_scheme"),
        ({"kv_cache_scheme": "static"}, "quantization_config.kv_cache_scheme"),
        ({"kv_cache_quant_algo": "FP8"}, "quantization_config.kv_cache_quant_algo"),
        ({"kv_cache_quant_config": {"*v_proj": {}}}, "quantization_config.kv_cache_quant_config"),
        ({"export": {"kv_cache_group": ["*k_proj", "*v_proj"]}}, "quantization_config.kv_cache_group"),
        ({"kv_cache_scheme": STATIC | {"dynamic": True}}, None),
        ({"kv_cache_scheme": None, "export": {"kv_cache_group": []}}, None),
    ],
    ids=str,
)
def test_scales_that_are_declared_and_not_there_are_told_of(fields, named, plain_llama: Path, tmp_path: Path, caplog):
    published = PUBLISHED["fp8 tensors"]
    quantized, _ = write_quantized(tmp_path, plain_llama, published)
    set_config(quantized, quantization_config={**published.config, **fields})

    def lines(**settings) -> list[str]:
        caplog.clear()
        load_model(quantized, "float32", progress=False, **settings)
        return [line for line in caplog.messages if "declares scales for an fp8 KV cache" in line]

    by_head = {f"model.layers.0.self_attn.{kind}_scale": torch.tensor(0.5) for kind in "kv"}
    assert lines() == lines(kv_cache_dtype="fp8_per_token_head") == []
    assert [f"{named} declares" in line for line in lines(kv_cache_dtype="fp8")] == ([True] if named else [])
    change(quantized, **by_head)
    for line in lines(kv_cache_dtype="fp8"):
        assert "the files hold none for 1 layers (the first is model.layers.1.self_attn)" in line
    change(quantized, **{name.replace("layers.0", "layers.1"): scale for name, scale in by_head.items()})
    assert lines(kv_cache_dtype="fp8") == []
    # Where no kernel reads scales, that is told when weights are loaded.
    context = BuildContext(platform=Platform.nvidia("sm_90"), dtype=torch.bfloat16, cache=CacheFormat("float8_e4m3fn"))
    build_model(open_checkpoint(quantized), context)
    assert "declares scales" not in caplog.text


@needs_the_native_kernels
def test_latents_in_fp8_have_the_scale_of_the_checkpoint_on_every_rank(tmp_path: Path, caplog):
    quantized, _ = write_quantized(tmp_path, make_tiny("deepseek_v3", tmp_path / "plain"), PUBLISHED["fp8 tiles"])
    plain, name = fp8_cache_logits(quantized), "model.layers.0.self_attn.k_scale"
    change(quantized, **{name: torch.tensor(2.0**-4)})
    assert 1e-5 < (fp8_cache_logits(quantized) - plain).abs().max() < 0.5
    assert "for an fp8 KV cache" not in caplog.text
    change(quantized, **{name: torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"k_scale has 2 scales; the KV cache takes one"):
        fp8_cache_logits(quantized)


@needs_the_native_kernels
@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("qkv_proj.k_scale", "qkv_proj.v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
        ("k_cache.scale", "v_cache.scale"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("key", "value"), [(0.5, 3.0), ([0.5, 0.25], [3.0, 6.0])], ids=["one", "for each head"])
def test_keys_and_values_have_their_own_scales_in_each_spelling(names, key, value, plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    both = zip(names, (key, value), strict=True)
    change(quantized, **{f"model.layers.0.self_attn.{name}": torch.tensor(scale) for name, scale in both})
    model = load_model(quantized, "float32", kv_cache_dtype="fp8", progress=False).model
    weights = mixer_layers(model)["model.layers.0.self_attn.attn"]._host._weights
    for held, scale in ((weights.key_scale, key), (weights.value_scale, value)):
        assert held.tolist() == (scale if isinstance(scale, list) else [scale, scale])


@needs_the_native_kernels
def test_a_cache_that_makes_its_own_scales_has_none_of_the_checkpoint(plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])

    def logits() -> torch.Tensor:
        model = load_model(quantized, "float32", kv_cache_dtype="fp8_per_token_head", progress=False)
        return torch.cat(model.logits(PROMPTS))

    before = logits()
    change(quantized, **{f"model.layers.0.self_attn.{kind}_scale": torch.tensor(2.0**30) for kind in "kv"})
    assert torch.equal(logits(), before)


class Rank(SingleRank):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@needs_the_native_kernels
@pytest.mark.parametrize(
    ("kv_heads", "cuts"),
    [
        (4, {2: [[1, 2], [3, 4]], 4: [[1], [2], [3], [4]]}),
        # More ranks than heads: each has the scale of its head.
        (2, {1: [[1, 2]], 2: [[1], [2]], 4: [[1], [1], [2], [2]]}),
        (1, {2: [[1], [1]]}),
    ],
    ids=str,
)
def test_a_rank_has_the_scales_of_its_heads(kv_heads: int, cuts: dict, tmp_path: Path):
    folder = make_tiny_llama(tmp_path / "m", hidden=64, num_heads=4, kv_heads=kv_heads)
    set_config(folder, quantization_config=PUBLISHED["fp8 tensors"].config)
    name = "model.layers.0.self_attn.{}_scale"
    keys = torch.arange(1.0, kv_heads + 1)
    change(folder, **{name.format("k"): keys, name.format("v"): keys * 8})
    checkpoint = open_checkpoint(folder)
    for size, expected in cuts.items():
        for rank in range(size):
            ranks = cast("Collectives", Rank(rank, size))
            context = BuildContext(cache=CacheFormat("float8_e4m3fn"), groups=Groups(ranks))
            layer = mixer_layers(build_model(checkpoint, context))["model.layers.0.self_attn.attn"]
            layer.load_shard(name.format("k"), keys)
            layer.load_shard(name.format("v"), keys * 8)
            layer.finish()
            weights = layer._host._weights
            assert weights.key_scale.tolist() == expected[rank]
            assert weights.value_scale.tolist() == [8 * scale for scale in expected[rank]]


@needs_the_native_kernels
def test_an_fp8_cache_has_a_scale_for_each_head(plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    by_head = {f"model.layers.0.self_attn.{kind}_scale": torch.tensor([[[0.25]], [[4.0]]]) for kind in "kv"}
    change(quantized, **by_head)
    model = load_model(quantized, "float32", kv_cache_dtype="fp8", progress=False).model
    weights = mixer_layers(model)["model.layers.0.self_attn.attn"]._host._weights
    assert weights.key_scale.tolist() == weights.value_scale.tolist() == [0.25, 4.0]


@needs_the_native_kernels
@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (torch.tensor(0.0), r"k_scale has 0.0: scales of a KV cache are above 0"),
        (torch.ones(3), r"k_scale has 3 scales; the KV cache takes one, or 2 for each of 1 ranks"),
    ],
    ids=["zero", "three"],
)
def test_scales_of_a_cache_that_make_no_sense_are_refused(scale, words, plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    change(quantized, **{"model.layers.0.self_attn.k_scale": scale})
    with pytest.raises(CheckpointError, match=words):
        fp8_cache_logits(quantized)


@pytest.mark.parametrize(("arch", "factor"), [("gfx942", 2.0), ("gfx950", 1.0)])
def test_scales_are_twice_as_large_where_the_largest_number_is_half_as_large(arch, factor, plain_llama, tmp_path):
    pytest.importorskip("triton", reason="Triton's kernels are planned where Triton is installed")
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    change(quantized, **{f"model.layers.{layer}.self_attn.k_scale": torch.tensor(0.5) for layer in range(2)})
    facts = Facts(torch_build="rocm", num_devices=1, device_arch=arch, triton_version="3.6.0")
    platform = platform_from_facts(facts)
    context = BuildContext(platform=platform, dtype=torch.bfloat16, cache=CacheFormat(platform.float8))
    layer = mixer_layers(build_model(open_checkpoint(quantized), context))["model.layers.0.self_attn.attn"]
    scales = layer._cache_scales
    assert scales is not None
    [name] = scales.expected()
    scales.load(name, torch.tensor(0.5))
    assert scales.take()["key_scale"].tolist() == [0.5 * factor] * 2
