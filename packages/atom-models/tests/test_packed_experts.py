"""Experts stay packed where a kernel reads their format: stored codes are kept, plain weights are rounded."""

from __future__ import annotations

import math

import pytest
import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Plain, num_bytes
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.native import native_unavailable
from atom_kernels.platform import Facts, Platform, platform_from_facts
from atom_kernels.protocols.collectives import SingleRank
from atom_kernels.select import select
from atom_models import BuildContext, build_model, open_checkpoint
from atom_models.groups import Groups
from atom_models.layers import Experts, MoEConfig
from atom_models.layers.loadable import expected_weights
from atom_models.layers.matrices import StoredMatrix, format_on_rank
from atom_models.model import stored_quantization
from atom_models.quantization import (
    EXPERTS,
    ROUNDED_TO,
    HeldFormat,
    LayerQuantization,
    UnsupportedQuantizationError,
    choose_quantization,
)
from atom_models.quantization.layouts import (
    AwqLayout,
    Float8Layout,
    GptqLayout,
    Int8Layout,
    Mxfp4Layout,
    Nvfp4Layout,
    PackedInt4Layout,
    PlainLayout,
)
from atom_models.quantization.packing import held_problem
from quantized_checkpoints import PUBLISHED, write_gpt_oss, write_quantized
from single_layers import bytes_on_rank
from tiny_architectures import make_tiny

E, K, D, I = 4, 2, 64, 64  # noqa: E741
PACKED_LAYOUTS = (
    *(Float8Layout(), Float8Layout((128, 128)), Float8Layout((32, 32)), Int8Layout(), Mxfp4Layout(), Nvfp4Layout()),
    *(PackedInt4Layout(32), PackedInt4Layout(32, zero_points=True), AwqLayout(32), GptqLayout(32)),
)
needs_kernel = pytest.mark.skipif(bool(native_unavailable("moe_quantized")), reason="no C kernels here")


class OneLayout:
    """Every matrix is stored alike."""

    name = "one"

    def __init__(self, *layouts):
        self._layouts = layouts

    def for_layer(self, layer_name, dtype):
        which = self._layouts[int(layer_name.split(".")[1]) % len(self._layouts)]
        return LayerQuantization(which)


class Rank(SingleRank):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def make_experts(quantization, size=I, **context):
    return Experts(MoEConfig(E, K, D, size), BuildContext(quantization=quantization, **context), prefix="m")


def plain_tensors(size=I):
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (size, D), "up_proj": (size, D), "down_proj": (D, size)}
    return {
        f"m.{expert}.{name}.weight": torch.randn(shape, generator=generator) * 0.2
        for expert in range(E)
        for name, shape in shapes.items()
    }


def run(layer, tensors):
    layer.choose_names(tensors)
    for name, tensor in tensors.items():
        layer.load_shard(name, tensor)
    layer.finish()
    generator = torch.Generator().manual_seed(1)
    x, gates = torch.randn(5, D, generator=generator), torch.rand(5, K, generator=generator)
    return layer(x, gates, torch.tensor([[0, 1], [3, 2], [1, 3], [2, 0], [0, 3]], dtype=torch.int32))


def held_formats(layer):
    return layer.problem.gate_up_format, layer.problem.down_format


def stored_as(tensors, layouts):
    """The tensors in these layouts, by expert, and the numbers that they hold."""
    stored, numbers = {}, {}
    for name, weight in tensors.items():
        layout, layer = layouts[int(name.split(".")[1]) % len(layouts)], name.removesuffix("weight")
        if isinstance(layout, PlainLayout):
            stored[name] = numbers[name] = weight
            continue
        parts = layout.weight_format.quantize(weight)
        numbers[name] = layout.weight_format.dequantize(parts, weight.shape[1])
        suffixes = dict(zip(parts, layout.expected(*weight.shape), strict=True))
        stored |= {f"{layer}{suffixes[part]}": tensor for part, tensor in parts.items()}
    return stored, numbers


def plain_result(numbers, size=I):
    return run(make_experts(choose_quantization({}), size), numbers)


@needs_kernel
@pytest.mark.parametrize("name", ROUNDED_TO)
def test_plain_experts_are_rounded_to_the_format_that_is_asked_for(name):
    tensors, wanted = plain_tensors(), ROUNDED_TO[name]
    layer = make_experts(choose_quantization({}, name))
    if name == "fp8_block":
        # A tile of 128 rows would hold gate and up.
        wanted = Float8(64, 128)
    assert held_formats(layer) == (wanted, ROUNDED_TO[name] if name != "fp8_block" else Float8(128, 128))
    rounded = {one: wanted.dequantize(wanted.quantize(weight), weight.shape[1]) for one, weight in tensors.items()}
    assert torch.allclose(run(layer, tensors), plain_result(rounded), atol=1e-5)


def test_experts_are_not_rounded_where_no_kernel_reads_the_format(monkeypatch):
    monkeypatch.setenv("ATOM_DISABLE_NATIVE", "1")
    with pytest.raises(
        UnsupportedQuantizationError, match="experts are not rounded to mxfp4 here: .*ATOM_DISABLE_NATI"
    ):
        make_experts(choose_quantization({}, "mxfp4"))


def test_stored_codes_become_plain_numbers_where_no_kernel_reads_them(monkeypatch):
    monkeypatch.setenv("ATOM_DISABLE_NATIVE", "1")
    stored, numbers = stored_as(plain_tensors(), [Mxfp4Layout()])
    layer = make_experts(OneLayout(Mxfp4Layout()))
    assert layer.problem.is_plain
    assert torch.equal(run(layer, stored), plain_result(numbers))


@needs_kernel
def test_sizes_that_no_kernel_takes_stay_plain():
    tensors = plain_tensors(size=24)
    layer = make_experts(choose_quantization({}, "int8"), size=24)
    assert layer.problem.is_plain
    assert torch.equal(run(layer, tensors), plain_result(tensors, size=24))


@needs_kernel
@pytest.mark.parametrize("layout", [Float8Layout((32, 32)), Float8Layout((128, 128)), Mxfp4Layout()], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_stored_codes_are_cut_over_ranks_and_change_no_number(layout, num_ranks):
    stored, numbers = stored_as(plain_tensors(), [layout])
    ranks = [make_experts(OneLayout(layout), groups=Groups(Rank(rank, num_ranks))) for rank in range(num_ranks)]
    assert not any(layer.problem.is_plain for layer in ranks)
    summed = sum(run(layer, stored) for layer in ranks)
    assert torch.allclose(summed, plain_result(numbers), atol=1e-5)


@needs_kernel
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("layout", [*PACKED_LAYOUTS, PlainLayout(torch.float32)], ids=lambda one: one.name)
def test_a_rank_allocates_the_bytes_of_experts_that_are_counted(layout, num_ranks):
    layer = make_experts(OneLayout(layout), groups=Groups(Rank(num_ranks - 1, num_ranks)), dtype=torch.float32)
    for expert in range(E):
        for name, shape in {"gate_proj": (I, D), "up_proj": (I, D), "down_proj": (D, I)}.items():
            for suffix, tensor in layout.expected(*shape).items():
                layer.load_shard(f"m.{expert}.{name}.{suffix}", torch.ones(tensor.shape).to(tensor.dtype))
    assert all(held == layer.problem.matrices[slot].held for slot, held in formats_of_stacks(layer).items())
    allocated = [sum(tensor.nbytes for tensor in stack.take().values()) for stack in layer._stacks.values()]
    assert bytes_on_rank(layer) == allocated
    assert (type(layout.weight_format) is Plain) == layer.problem.is_plain


def formats_of_stacks(layer):
    return {slot: stack.weight_format for slot, stack in layer._stacks.items()}


@needs_kernel
def test_experts_that_cannot_be_cut_are_counted_as_the_plain_numbers_that_they_become():
    """The second of two ranks begins within a block of 32 inputs of the down projection."""
    whole, half = (
        make_experts(OneLayout(Mxfp4Layout()), 32, groups=Groups(Rank(ranks - 1, ranks))) for ranks in (1, 2)
    )
    assert bytes_on_rank(whole) == [E * 64 * D * 17 // 32, E * D * 32 * 17 // 32]
    plain = whole.problem.dtype.itemsize
    assert bytes_on_rank(half) == [E * 32 * D * plain, E * D * 16 * plain]


@needs_kernel
@pytest.mark.parametrize("other", [Float8Layout((32, 32)), PlainLayout(torch.float32)], ids=lambda one: one.name)
def test_experts_that_are_stored_in_several_formats_are_held_plain(other):
    layouts = [Mxfp4Layout(), other]
    stored, numbers = stored_as(plain_tensors(), layouts)
    layer = make_experts(OneLayout(*layouts))
    assert torch.equal(run(layer, stored), plain_result(numbers))
    assert layer.problem.is_plain


def test_scales_of_tiles_that_hold_gate_and_up_by_turns_cannot_be_kept():
    halves = ((0, 64), (64, 128))
    apart, by_turns = (
        [StoredMatrix("m", Mxfp4Layout(), (128, 64), halves, (0, 64), interleaved=interleaved)]
        for interleaved in (False, True)
    )
    with pytest.raises(ValueError, match="gate and up that take turns"):
        format_on_rank(Float8(128, 128), by_turns)
    assert format_on_rank(Float8(128, 128), apart) == Float8(64, 128)
    assert format_on_rank(Mxfp4(), by_turns) == Mxfp4()


# A family; how its experts are stored; what holds gate and up.
KEPT = {
    "qwen3_moe": ("fp8 tiles", {"hidden_size": 64, "moe_intermediate_size": 64}, Float8(64, 128)),
    "kimi_k2": ("int4 packed", {"q_lora_rank": 32, "v_head_dim": 16, "moe_intermediate_size": 32}, Integers(4, 32)),
    "deepseek_v3": ("fp8 tiles", {"moe_intermediate_size": 64}, Float8(64, 128)),
    "gpt_oss": (None, {"hidden_size": 96, "intermediate_size": 64}, Mxfp4()),
}


@needs_kernel
@pytest.mark.parametrize("family", KEPT)
def test_experts_of_published_mixtures_stay_packed(family, tmp_path):
    name, sizes, wanted = KEPT[family]
    plain = make_tiny(family, tmp_path / "plain", **sizes)
    written = write_gpt_oss(tmp_path, plain) if name is None else write_quantized(tmp_path, plain, PUBLISHED[name])
    checkpoint = open_checkpoint(written[0])
    model = build_model(checkpoint, BuildContext(quantization=stored_quantization(checkpoint)))
    experts = [layer for layer in model.modules() if isinstance(layer, Experts)]
    assert experts
    for layer in experts:
        [weights] = layer.weights()
        told, gate_up = weights.held(), weights.on_rank[0]
        assert type(layer.problem.gate_up_format) is type(wanted)
        assert wanted.name.split()[0] in told.held
        assert told.num_bytes < 2 * 1.5 * gate_up.count * math.prod(gate_up.shape)


@pytest.mark.parametrize(
    "stored", [Mxfp4Layout(), Float8Layout((128, 128)), Int8Layout(), PackedInt4Layout(32)], ids=str
)
def test_experts_stay_packed_on_gpus(stored):
    facts = Facts(torch_build="cuda", num_devices=1, device_arch="sm_90", triton_version="3.6.0")
    context = BuildContext(
        dtype=torch.bfloat16, quantization=OneLayout(stored), platform=platform_from_facts(facts), device="cpu"
    )
    layer = Experts(MoEConfig(E, K, 128, 256), context, prefix="m")
    assert held_formats(layer) == (stored.weight_format, stored.weight_format)
    told = layer.weights()[0].held()
    assert any("codes decoded in registers" in one for one in told.implementations)
    assert told.num_bytes < 1.2 * num_bytes(stored.weight_format, 3 * E * 256, 128)


@pytest.mark.parametrize(("rounds", "served"), [(True, "aiter"), (False, None)])
def test_what_a_checkpoint_says_of_activations_chooses_amds_kernel_of_experts(rounds, served):
    plain = ExpertsProblem(4, 2, 256, 128, torch.bfloat16)
    for layout in (Float8Layout(rounds_inputs=rounds), Float8Layout((128, 128), rounds_inputs=rounds)):
        formats, held = [layout.weight_format] * 2, HeldFormat(inputs=layout.input_format)
        platform = Platform.rocm("gfx942")
        problem = held_problem(EXPERTS, plain, formats, held, platform)
        assert problem.is_plain == (served is None)
        if served:
            assert select(MOE_EXPERTS, problem, platform).rows[0].backend == served


def test_experts_of_a_layer_are_told_what_activations_may_be_rounded_to():
    class Rounding(OneLayout):
        def for_layer(self, layer_name, dtype):
            return LayerQuantization(self._layouts[0], HeldFormat(inputs=self._layouts[0].input_format))

    config = MoEConfig(E, K, 256, 128)
    context = BuildContext(
        dtype=torch.bfloat16, quantization=Rounding(Float8Layout()), platform=Platform.rocm("gfx942")
    )
    layer = Experts(config, context, prefix="experts")
    expected_weights(layer)
    assert layer.problem.input_format == Float8()
