"""Experts of packed weights in Triton: every format, tile and number of rows gives the numbers of the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, unpack_nibbles
from atom_kernels.linear.triton.packed_weights import E2M1_SUM_EXPONENT, words_of_powers
from atom_kernels.moe import ExpertsProblem, experts
from atom_kernels.moe.fragments import ROWS, WORDS, fragments, powers
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.moe.triton import fragments as by_triton
from atom_kernels.moe.triton.configs import ExpertsConfig, ExpertsConfigs, TileConfig, default_config
from atom_kernels.moe.triton.experts_backend import PACKED_EXPERTS_BACKEND, TritonExperts
from atom_kernels.moe.tuning import candidates
from atom_kernels.platform import Platform, detect_platform, use_platform
from atom_kernels.select import select
from gpu_assembly import bfloat16_of, run_assembly

HERE = detect_platform()
# The interpreter computes with numpy, which says where exp() leaves float32.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def here(tensors):
    return {name: None if tensor is None else tensor.to(HERE.device) for name, tensor in tensors.items()}


def on_device(inputs):
    return tuple(None if tensor is None else tensor.to(HERE.device) for tensor in inputs)


def packed(problem, weights):
    return PACKED_EXPERTS_BACKEND.layout.pack(problem, here(weights))


def make_experts(problem, num_tokens, seed=0):
    return MOE_EXPERTS.make_inputs(problem, num_tokens, torch.Generator().manual_seed(seed))


def problem_of(weight_format, dtype=torch.float32, **rules):
    return ExpertsProblem(3, 2, 160, 32, dtype, gate_up_format=weight_format, down_format=weight_format, **rules)


def test_every_format_agrees_with_the_reference():
    formats = set()
    for case in parity_cases(MOE_EXPERTS, HERE, only_backend="triton"):
        if "codes decoded" in case.backend and case.label.endswith("rows=1"):
            found = mismatch(case.run(), case.expected(), case.tolerance)
            assert found is None, f"{case.label}: {found}"
            formats.add(case.label.split("gate_up_format=")[1].split(" input_format")[0])
    assert len(formats) >= 10


@pytest.mark.parametrize(
    ("weight_format", "few_pairs"), [(Mxfp4(), 0), (Mxfp4(), 64), (Float8(32, 32), 0), (Integers(4, 32), 64)], ids=str
)
def test_sorted_or_found_pairs_of_more_than_a_block_agree(weight_format, few_pairs):
    problem = problem_of(weight_format, activation="swiglu_oai", bias=True)
    weights, inputs = make_experts(problem, 19)
    tile = TileConfig(16, 64, 32 if isinstance(weight_format, Float8) else 128, group_m=2, swap=True)
    kernel = TritonExperts(problem, packed(problem, weights), lambda _: ExpertsConfig(tile, tile), few_pairs)
    expected = experts(problem, weights, *inputs)
    assert mismatch(kernel(*on_device(inputs)), expected, MOE_EXPERTS.tolerance(problem)) is None


@pytest.mark.parametrize("group", [128, None])
def test_rows_that_are_rounded_first_give_products_with_their_scales(group):
    held = Float8(1 if group is None else 128, group)
    problem = ExpertsProblem(
        3, 2, 256, 128, torch.float32, gate_up_format=held, down_format=held, input_format=Float8(1, group)
    )
    weights, (x, gates, ids, base) = make_experts(problem, 9)
    # Scales of rows, and of groups of one row, are unlike each other.
    inputs = (x * torch.logspace(-1, 1, 9)[:, None] * torch.linspace(0.1, 2, 256), gates, ids, base)
    tile = TileConfig(16, 64, 128, swap=True, rounds=True)
    kernel = TritonExperts(problem, packed(problem, weights), lambda _: ExpertsConfig(tile, tile))
    got, expected = kernel(*on_device(inputs)).cpu(), experts(problem, weights, *inputs)
    # Triton's interpreter rounds the last sixteenth below a power of two to half of it.
    assert 1e-4 < float((got - expected).norm() / expected.norm()) < 0.2


def test_rounding_rows_is_tried_where_that_is_allowed():
    problem = problem_of(Float8(128, 128), torch.bfloat16, input_format=Float8(1, 128))
    problem = replace(problem, hidden_size=256, intermediate_size=128)

    def is_tried(problem, num_tokens=512):
        return {config.rounds for config in candidates(problem, num_tokens)} == {False, True}

    with use_platform(Platform.nvidia("sm_90")):
        assert [is_tried(problem, num) for num in (1, 32, 512)] == [False, False, True]
        assert not default_config(problem, 512).down.rounds
        for change in ({"input_format": None}, {"batch_invariant": True}, {"hidden_size": 192}):
            assert not is_tried(replace(problem, **change))
    with use_platform(Platform.nvidia("sm_80")):
        assert not is_tried(problem)


def test_fragments_of_several_tokens_are_read_in_tiles_of_which_three_fit_on_an_nvidia_processor():
    """Measured on an H200: 64 outputs for one token, and for more 128 with a limit of registers."""
    gpt_oss = ExpertsProblem(32, 4, 2880, 2880, torch.bfloat16, gate_up_format=Mxfp4(), down_format=Mxfp4())

    def tile(problem, num_tokens):
        config = default_config(problem, num_tokens)
        assert config.gate_up == config.down
        return config.down.block_m, config.down.block_n, config.down.launch().get("maxnreg")

    with use_platform(Platform.nvidia("sm_90")):
        assert [tile(gpt_oss, num) for num in (1, 32, 128)] == [(16, 64, None), (16, 128, 168), (32, 128, 168)]
        codes = Float8(128, 128)
        assert tile(replace(gpt_oss, gate_up_format=codes, down_format=codes), 32) == (16, 64, None)
    with use_platform(Platform.rocm("gfx942")):
        assert tile(gpt_oss, 32) == (16, 64, None)  # AMD's compiler knows no such limit


def test_instructions_of_a_gpu_make_of_words_what_they_hold():
    """The interpreter has no assembly: its words are run here."""
    draw = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (ROWS, 64), dtype=torch.uint8, generator=draw)
    scale = torch.randint(100, 140, (ROWS, 4), dtype=torch.uint8, generator=draw)
    expected = Mxfp4().dequantize({"weight": packed, "scale": scale}, 128)
    words, bytes_of = fragments(packed)[0, 0].tolist(), powers(scale)[0, 0].tolist()
    for row in range(0, ROWS, 7):
        for thread in range(4):
            for block in range(4):
                given = {"$8": words[row][4 * thread + block], "$9": bytes_of[row]}
                found = run_assembly(by_triton._SCALED_PAIRS.value[block], given)
                for place in range(8):
                    column = 32 * block + 8 * (place // 2) + 2 * thread + place % 2
                    number = bfloat16_of(found[f"${place}"]) * 2.0**E2M1_SUM_EXPONENT
                    assert number.item() == expected[row, column].item()


def test_rows_of_garbage_reach_no_other_row():
    problem = problem_of(Mxfp4())
    weights, (x, gates, ids, _) = make_experts(problem, 4)
    ids[:3], ids[3] = torch.tensor([0, 2]), -1
    x[3] = float("nan")
    kernel = select(MOE_EXPERTS, problem, only_backend="triton").prepare(here(weights))
    got = kernel(*on_device((x, gates, ids, None)))
    expected = experts(problem, weights, x.nan_to_num(), gates, ids)
    assert mismatch(got, expected, MOE_EXPERTS.tolerance(problem)) is None


def test_words_hold_what_a_thread_has_of_a_block():
    packed = torch.randint(0, 256, (40, 200 // 2), dtype=torch.uint8)
    words, codes = fragments(packed).long() & 0xFFFFFFFF, unpack_nibbles(packed).long()
    assert words.shape == (2, 2, ROWS, WORDS)
    # The first of each pair: sign, exponent and mantissa; the second has them 16 bits away.
    places = [(15, 8, 7, 6), (11, 4, 3, 2), (5, 30, 29, 28), (1, 26, 25, 0)]
    for column in range(200):
        word = 4 * (column // 2 % 4) + column // 32 % 4
        bits = words[:, column // 128, :, word].flatten()[:40]
        sign, e1, e0, m = ((place + 16 * (column % 2)) % 32 for place in places[column // 8 % 4])
        found = (bits >> sign & 1) << 3 | (bits >> e1 & 1) << 2 | (bits >> e0 & 1) << 1 | bits >> m & 1
        assert torch.equal(found, codes[:, column])


def test_powers_of_two_lie_in_words_of_a_tile():
    scale = torch.arange(2 * 90, dtype=torch.uint8).view(2, 90) % 150
    words = words_of_powers(scale)
    assert words.shape == (2, 23)
    for group in range(90):
        assert torch.equal(words[:, group // 4] >> group % 4 * 8 & 255, scale[:, group].int())
    blocks = powers(scale)
    assert blocks.shape == (1, 23, ROWS)
    assert torch.equal(blocks[0, :, :2].t(), words)


def test_weights_that_no_model_has_are_refused():
    with pytest.raises(ValueError, match=r"a block of weights has the scale 2 \*\* 34: kernels take up to 2 \*\* 33"):
        words_of_powers(torch.tensor([[127, 161]], dtype=torch.uint8))


def test_packed_experts_take_no_more_memory_than_a_plan_says():
    for weight_format in (Mxfp4(), Float8(128, 128), Integers(4, 32, Offset.ZERO_POINT, torch.float16), Integers(8)):
        problem = problem_of(weight_format, torch.bfloat16, bias=True)
        plan = select(MOE_EXPERTS, problem, only_backend="triton")
        assert plan.prepare(here(make_experts(problem, 1)[0])).weight_bytes == plan.weight_bytes, weight_format.name


@pytest.mark.parametrize(
    ("weight_format", "platform", "reason"),
    [
        (None, Platform.nvidia("sm_90"), "for packed weights"),
        (Nvfp4(), Platform.nvidia("sm_90"), "reads exponents of two alone as scales of e2m1"),
        (Float8(), Platform.nvidia("sm_80"), "Triton has fp8 from sm_89 on, not on sm_80"),
        (Mxfp4(), Platform.nvidia("sm_80"), None),
        (Mxfp4(), Platform.rocm("gfx942"), None),
        (Float8(), Platform.rocm("gfx950"), None),
        (
            Float8(),
            Platform.rocm("gfx942"),
            "gfx942 decodes fp8 as checkpoints have it in software, which is slower than plain weights",
        ),
    ],
    ids=str,
)
def test_what_triton_cannot_read_is_refused(weight_format, platform, reason):
    assert PACKED_EXPERTS_BACKEND.supports(problem_of(weight_format), platform) == reason


def test_one_kind_of_tile_serves_all_rows_where_batches_must_not_matter():
    problem = problem_of(Float8(128, 128), torch.bfloat16, batch_invariant=True)
    configs = ExpertsConfigs(problem, "a GPU")
    assert configs.for_tokens(1) == configs.for_tokens(4096)
    assert configs.for_tokens(1).gate_up.block_k == 128


def test_the_inputs_of_one_token_are_split_only_where_its_sums_need_no_common_order():
    """Sums of parts have other bits than one sum of all inputs."""
    formats = {"gate_up_format": Mxfp4(), "down_format": Mxfp4()}
    for batch_invariant in (False, True):
        problem = ExpertsProblem(3, 2, 64, 416, torch.float32, batch_invariant=batch_invariant, **formats)
        weights, (x, gates, ids, _) = make_experts(problem, 3)
        kernel = TritonExperts(problem, packed(problem, weights), partial(default_config, problem))
        x, gates, ids = on_device((x, gates, ids))
        together = kernel(x, gates, ids)
        apart = torch.cat([kernel(*(rows[at : at + 1] for rows in (x, gates, ids))) for at in range(3)])
        torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-5)
        assert torch.equal(apart, together) is batch_invariant


@pytest.mark.parametrize(("num_processors", "parts"), [(0, 2), (3, 1), (4, 2)])
def test_one_token_with_few_programs_for_each_processor_has_its_inputs_split(monkeypatch, num_processors, parts):
    problem = problem_of(Mxfp4())
    weights, _ = make_experts(problem, 1)
    kernel = TritonExperts(problem, packed(problem, weights), partial(default_config, problem))
    monkeypatch.setattr(kernel, "_num_processors", num_processors)
    tile = TileConfig(block_n=64)
    # 160 outputs are three tiles; the second product of two pairs has six programs.
    assert kernel._parts("down", 2, tile) == parts
    assert kernel._parts("down", 3, tile) == 1
