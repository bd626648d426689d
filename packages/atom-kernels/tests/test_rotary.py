"""Tables of every rope scaling against the published formulas, and the rotation against complex numbers."""

from __future__ import annotations

import math

import pytest
import torch

from atom_kernels.rotary import RopeConfig, apply_rotary, rope_cos_sin, rope_frequencies

DEFAULT = [10000.0 ** (-2 * i / 64) for i in range(32)]


def make_config(**overrides):
    return RopeConfig(**{"head_dim": 64, "max_position": 64, **overrides})


def frequencies(**overrides):
    inv_freq, attention_factor = rope_frequencies(make_config(**overrides))
    return inv_freq.tolist(), attention_factor


def test_default_frequencies_are_those_of_roformer():
    assert frequencies()[0] == pytest.approx(DEFAULT)


def test_linear_scaling_divides_positions():
    assert frequencies(rope_type="linear", factor=4.0)[0] == pytest.approx([f / 4 for f in DEFAULT])


def test_dynamic_ntk_is_the_default_up_to_the_trained_length():
    inside = frequencies(rope_type="dynamic", factor=2.0, max_position_embeddings=64)[0]
    assert inside == pytest.approx(DEFAULT)


def test_dynamic_ntk_stretches_the_base_beyond_the_trained_length():
    actual = frequencies(rope_type="dynamic", factor=2.0, max_position=256, max_position_embeddings=64)[0]
    base = 10000.0 * (2.0 * 256 / 64 - 1.0) ** (64 / 62)
    assert actual == pytest.approx([base ** (-2 * i / 64) for i in range(32)])


def llama3_frequency(frequency, factor=8.0, low=1.0, high=4.0, trained=8192):
    """As published with the Llama 3.1 weights."""
    wavelength = 2 * math.pi / frequency
    if wavelength < trained / high:
        return frequency
    if wavelength > trained / low:
        return frequency / factor
    smooth = (trained / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_llama3_scaling_follows_the_published_code():
    actual, attention_factor = frequencies(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, original_max_position_embeddings=8192
    )
    default = [500000.0 ** (-2 * i / 64) for i in range(32)]
    assert actual == pytest.approx([llama3_frequency(f) for f in default], rel=1e-5)
    assert attention_factor == 1.0


def yarn_frequency(index, factor, trained, dim=64, base=10000.0):
    """YaRN, equations 19 to 23: the ramp runs over rotations, rounded outwards to whole dimensions."""

    def dimension(rotations):
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), dim - 1)
    ramp = min(max((index - low) / (high - low), 0.0), 1.0)
    frequency = base ** (-2 * index / dim)
    return ramp * frequency / factor + (1 - ramp) * frequency


def test_yarn_interpolates_by_parts_and_sharpens_attention():
    actual, attention_factor = frequencies(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)
    assert actual == pytest.approx([yarn_frequency(i, 4.0, 2048) for i in range(32)], rel=1e-5)
    assert attention_factor == pytest.approx(0.1 * math.log(4.0) + 1)


@pytest.mark.parametrize(
    ("trained", "base"), [(64, 10000.0), (2**17, 100.0), (2**30, 30.0)], ids=["below", "above", "both ends above"]
)
def test_the_ramp_of_yarn_ends_with_the_dimensions(trained, base):
    options = {"rope_type": "yarn", "factor": 4.0, "rope_theta": base, "original_max_position_embeddings": trained}
    expected = [yarn_frequency(i, 4.0, trained, base=base) for i in range(32)]
    assert frequencies(**options)[0] == pytest.approx(expected, rel=1e-5)


def test_an_attention_factor_that_a_config_states_is_the_one():
    options = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "attention_factor": 0.75}
    assert frequencies(**options)[1] == 0.75
    assert frequencies(**options, mscale=1.0, mscale_all_dim=0.5)[1] == 0.75
    assert frequencies(**make_longrope(), attention_factor=0.75)[1] == 0.75
    table = rope_cos_sin(make_config(**options))
    assert table[0].tolist() == [0.75] * 32 + [0.0] * 32
    read = RopeConfig.from_parameters(options, head_dim=64, max_position_embeddings=64)
    assert rope_frequencies(read)[1] == 0.75


def test_yarn_that_stretches_nothing_leaves_attention_alone():
    assert frequencies(rope_type="yarn", factor=0.5, original_max_position_embeddings=2048)[1] == 1.0


def test_yarn_with_both_mscales_uses_their_ratio():
    options = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    assert frequencies(**options, mscale=0.707, mscale_all_dim=0.707)[1] == pytest.approx(1.0)
    expected = (0.1 * 1.0 * math.log(40) + 1) / (0.1 * 0.5 * math.log(40) + 1)
    assert frequencies(**options, mscale=1.0, mscale_all_dim=0.5)[1] == pytest.approx(expected)


def test_yarn_without_truncation_keeps_the_ramp_between_dimensions():
    options = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    assert frequencies(**options)[0] != pytest.approx(frequencies(**options, truncate=False)[0], rel=1e-4)


def make_longrope(**overrides):
    return {
        "rope_type": "longrope",
        "long_factor": tuple(2.0 + i for i in range(32)),
        "short_factor": tuple(1.0 + i / 10 for i in range(32)),
        "original_max_position_embeddings": 128,
        "max_position_embeddings": 1024,
        **overrides,
    }


@pytest.mark.parametrize(("max_position", "name"), [(128, "short_factor"), (129, "long_factor")])
def test_longrope_takes_its_factors_by_the_length_served(max_position, name):
    options = make_longrope(max_position=max_position)
    actual, attention_factor = frequencies(**options)
    assert actual == pytest.approx([f / factor for f, factor in zip(DEFAULT, options[name], strict=True)])
    assert attention_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(128)))


def test_a_partial_factor_rotates_the_leading_share_of_a_head():
    config = make_config(partial_rotary_factor=0.25)
    assert config.rotary_dim == 16
    assert rope_frequencies(config)[0].tolist() == pytest.approx([10000.0 ** (-2 * i / 16) for i in range(8)])


def test_proportional_scaling_leaves_trailing_frequencies_still():
    inv_freq = frequencies(rope_type="proportional", partial_rotary_factor=0.25)[0]
    assert inv_freq[:8] == pytest.approx(DEFAULT[:8])
    assert inv_freq[8:] == [0.0] * 24


def test_the_table_holds_cosines_then_sines_times_the_attention_factor():
    config = make_config(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)
    inv_freq, attention_factor = rope_frequencies(config)
    table = rope_cos_sin(config)
    assert table.shape == (64, 64)
    angles = 17 * inv_freq
    assert torch.allclose(table[17, :32], angles.cos() * attention_factor, atol=1e-6)
    assert torch.allclose(table[17, 32:], angles.sin() * attention_factor, atol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rope_type": "spiral"}, "'spiral' is not one of"),
        ({"rope_type": "linear"}, "needs the parameter factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs the parameter original_max_position_embeddings"),
        (make_longrope(short_factor=(1.0,)), "short_factor has 1 numbers, not 32"),
    ],
)
def test_incomplete_parameters_are_refused_by_name(parameters, words):
    parameters = {key: value for key, value in parameters.items() if key != "max_position_embeddings"}
    with pytest.raises(ValueError, match=words):
        RopeConfig.from_parameters(parameters, head_dim=64, max_position_embeddings=1024)


def test_parameters_of_a_checkpoint_are_read_and_others_left_alone():
    config = RopeConfig.from_parameters(
        {"type": "linear", "factor": 2, "rope_theta": 5e5, "mrope_section": [16, 24, 24], "attention_factor": None},
        head_dim=128,
        max_position_embeddings=4096,
        max_position=512,
    )
    assert (config.rope_type, config.factor, config.rope_theta) == ("linear", 2, 5e5)
    assert (config.max_position, config.max_position_embeddings) == (512, 4096)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_multiplies_complex_numbers(interleaved):
    q = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7, 30, 30])
    config = make_config(head_dim=8)
    rotated, _ = apply_rotary(q, q, positions, rope_cos_sin(config), interleaved=interleaved)
    turn = torch.polar(torch.ones(5, 4), torch.outer(positions.float(), rope_frequencies(config)[0])).unsqueeze(1)
    pairs = (q[..., ::2], q[..., 1::2]) if interleaved else q.chunk(2, dim=-1)
    expected = torch.complex(*pairs) * turn
    parts = (expected.real, expected.imag)
    expected = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    assert torch.allclose(rotated, expected, atol=1e-5)


def test_elements_past_the_rotary_share_pass_unchanged():
    q = torch.randn(4, 2, 20)
    rotated, _ = apply_rotary(q, q, torch.arange(4), rope_cos_sin(make_config(head_dim=8)))
    assert torch.equal(rotated[..., 8:], q[..., 8:])
    assert not torch.equal(rotated[1:, :, :8], q[1:, :, :8])


def test_inputs_of_the_rotation_are_not_changed():
    q, k = torch.randn(4, 2, 8), torch.randn(4, 1, 8)
    before = q.clone(), k.clone()
    apply_rotary(q, k, torch.arange(4), rope_cos_sin(make_config(head_dim=8)))
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


@pytest.mark.parametrize("interleaved", [False, True])
def test_three_equal_positions_are_one_position(interleaved):
    q, positions = torch.randn(6, 2, 16), torch.arange(6)
    table = rope_cos_sin(make_config(head_dim=16))
    plain, _ = apply_rotary(q, q, positions, table)
    threefold, _ = apply_rotary(
        q, q, positions.expand(3, -1), table, mrope_section=(4, 2, 2), mrope_interleaved=interleaved
    )
    assert torch.equal(threefold, plain)


@pytest.mark.parametrize(("interleaved", "axes"), [(False, [0, 0, 0, 0, 1, 1, 2, 2]), (True, [0, 1, 2, 0, 1, 2, 0, 0])])
def test_each_frequency_follows_the_position_of_its_section(interleaved, axes):
    table = rope_cos_sin(make_config(head_dim=16))
    q = torch.cat((torch.ones(1, 1, 8), torch.zeros(1, 1, 8)), dim=-1)
    positions = torch.tensor([[3], [11], [40]])
    rotated, _ = apply_rotary(q, q, positions, table, mrope_section=(4, 2, 2), mrope_interleaved=interleaved)
    expected = [table[positions[axis, 0], index].item() for index, axis in enumerate(axes)]
    assert rotated[0, 0, :8].tolist() == pytest.approx(expected)


def test_three_positions_without_sections_are_refused():
    q = torch.randn(2, 1, 16)
    with pytest.raises(ValueError, match="three mrope sections that add up to 8"):
        apply_rotary(q, q, torch.zeros(3, 2, dtype=torch.int64), rope_cos_sin(make_config(head_dim=16)))
