"""Sampling from logits and from probabilities, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

ROWS, VOCAB = 5, 48


def tokens(rows: int = ROWS, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((rows,), -1, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_takes_the_first_of_the_largest(aiter: ModuleType, dtype: torch.dtype):
    logits, out = torch.randn(ROWS, 2 * VOCAB).to(dtype)[:, :VOCAB], tokens()
    logits[2, [7, 30]] = 9.0
    aiter.greedy_sample(out, logits)
    assert torch.equal(out.long(), logits.float().argmax(-1))
    assert out[2] == 7


@pytest.mark.parametrize("name", ["mixed_sample_outer_exponential", "random_sample_outer_exponential"])
def test_noise_decides_by_probability_over_noise(aiter: ModuleType, name: str):
    logits, noise, out = torch.randn(ROWS, VOCAB), torch.empty(ROWS, VOCAB).exponential_(), tokens()
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0])
    getattr(aiter, name)(out, logits, noise, temperature)
    expected = ((logits / temperature.clamp(min=1e-5)[:, None]).softmax(-1) / (noise + 1e-10)).argmax(-1)
    if name == "mixed_sample_outer_exponential":
        expected = torch.where(temperature == 0, logits.argmax(-1), expected)
    assert torch.equal(out.long(), expected)


def test_one_row_of_noise_serves_all(aiter: ModuleType):
    noise = torch.empty(1, VOCAB).exponential_()
    logits, temperature, outs = torch.randn(ROWS, VOCAB), torch.ones(ROWS), [tokens(), tokens()]
    aiter.mixed_sample_outer_exponential(outs[0], logits, noise.expand(ROWS, VOCAB), temperature)
    aiter.mixed_sample_outer_exponential(outs[1], logits, noise.repeat(ROWS, 1), temperature)
    assert torch.equal(*outs)


def test_mixed_sampling_follows_the_generator_and_the_distribution(aiter: ModuleType):
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(4000, 4)
    outs = [tokens(4000), tokens(4000)]
    for out in outs:
        aiter.mixed_sample(out, logits, torch.ones(4000), generator=torch.Generator().manual_seed(3))
    assert torch.equal(*outs)
    counts = outs[0].bincount(minlength=4) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.2, 0.3, 0.4]), rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"out": tokens(dtype=torch.int64)}, (SilentlyWrong, Refused), "out is"),
        ({"out": tokens(4)}, SilentlyWrong, "out has shape"),
        ({"input": torch.randn(ROWS, VOCAB).double()}, Refused, "input"),
        ({"input": torch.randn(VOCAB, ROWS).t()}, SilentlyWrong, "input has strides"),
        ({"input": torch.randn(ROWS, 50), "exponentials": torch.ones(ROWS, 50)}, SilentlyWrong, "may win"),
        ({"exponentials": torch.ones(ROWS, VOCAB).double()}, (SilentlyWrong, Refused), "exponentials is"),
        ({"exponentials": torch.ones(1, VOCAB)}, SilentlyWrong, "exponentials has shape"),
        ({"temperature": torch.ones(ROWS).half()}, (SilentlyWrong, Refused), "temperature is"),
        ({"temperature": torch.ones(1)}, SilentlyWrong, "temperature has shape"),
        ({"temperature": torch.ones(ROWS, 1)}, SilentlyWrong, "temperature has shape"),
        ({"temperature": torch.ones(2 * ROWS)[::2]}, SilentlyWrong, "temperature has strides"),
        ({"exponentials": torch.ones(VOCAB, ROWS).t()}, SilentlyWrong, "exponentials has strides"),
        ({"input": torch.randn(VOCAB)}, SilentlyWrong, "input has shape"),
        ({"out": tokens(2 * ROWS)[::2]}, SilentlyWrong, "out has strides"),
    ],
)
def test_what_the_mixed_kernel_misreads(aiter: ModuleType, changes: dict, error: type, words: str):
    given = {
        "out": tokens(),
        "input": torch.randn(ROWS, VOCAB),
        "exponentials": torch.ones(ROWS, VOCAB),
        "temperature": torch.ones(ROWS),
    }
    with pytest.raises(error, match=words):
        aiter.mixed_sample_outer_exponential(*(given | changes).values())


def test_vocabularies_end_with_a_vector(aiter: ModuleType):
    with pytest.raises(SilentlyWrong, match="vector of 16"):
        aiter.greedy_sample(tokens(), torch.randn(ROWS, 52))
    aiter.mixed_sample(tokens(), torch.randn(ROWS, 52), torch.ones(ROWS))


def sampling() -> ModuleType:
    return importlib.import_module("aiter.ops.sampling")


def test_top_k_renormalizes_what_it_keeps(aiter: ModuleType):
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.4, 0.1]])
    renorm = sampling().top_k_renorm_probs
    torch.testing.assert_close(renorm(probs[:1], None, 2), torch.tensor([[0, 4 / 7, 0, 3 / 7]]))
    each = renorm(probs, torch.tensor([1, 2], dtype=torch.int32), 0)
    torch.testing.assert_close(each, torch.tensor([[0, 1, 0, 0], [0.25 / 0.9, 0.25 / 0.9, 0.4 / 0.9, 0]]))


def test_draws_come_from_what_the_filters_keep(aiter: ModuleType):
    module, row = sampling(), torch.tensor([0.05, 0.4, 0.25, 0.3])
    many = row.expand(2000, 4).contiguous()
    top_p = module.top_p_sampling_from_probs(many, None, None, 0.6, deterministic=True)
    assert top_p.dtype == torch.int32
    assert set(top_p.tolist()) == {1, 3}
    both = module.top_k_top_p_sampling_from_probs(many, None, None, 3, torch.full((2000,), 0.99), 0.0)
    assert set(both.tolist()) == {1, 2, 3}
    one = module.top_k_top_p_sampling_from_probs(many, None, torch.ones(2000, dtype=torch.int32), 0, None, 1.0)
    assert set(one.tolist()) == {1}
    counts = module.top_p_sampling_from_probs(many, None, None, 1.0).bincount(minlength=4) / 2000
    torch.testing.assert_close(counts, row, rtol=0, atol=0.05)


def test_rows_are_chosen_by_indices(aiter: ModuleType):
    probs = torch.eye(4)
    out = sampling().top_p_sampling_from_probs(probs, torch.tensor([2, 0, 2], dtype=torch.int32), None, 0.9)
    assert out.tolist() == [2, 0, 2]
    with pytest.raises(SilentlyWrong, match="indices"):
        sampling().top_p_sampling_from_probs(probs, torch.tensor([2, 0, 2]), None, 0.9)


@pytest.mark.parametrize("probs", [torch.ones(4), torch.ones(4, 3).t()])
def test_probabilities_are_a_contiguous_matrix(aiter: ModuleType, probs: torch.Tensor):
    with pytest.raises(SilentlyWrong, match="probs has"):
        sampling().top_k_renorm_probs(probs, None, 1)


def test_a_filter_has_an_entry_for_each_row(aiter: ModuleType):
    probs = torch.full((3, 4), 0.25)
    with pytest.raises(SilentlyWrong, match="maybe_top_k_arr"):
        sampling().top_k_renorm_probs(probs, torch.ones(2, dtype=torch.int32), 0)
    with pytest.raises(SilentlyWrong, match="maybe_top_k_arr is"):
        sampling().top_k_renorm_probs(probs, torch.ones(3), 0)
    with pytest.raises(SilentlyWrong, match="probs has"):
        sampling().top_k_top_p_sampling_from_probs(torch.ones(4, 3).t(), None, None, 1, None, 0.9)
    with pytest.raises(SilentlyWrong, match="maybe_top_p_arr"):
        sampling().top_p_sampling_from_probs(probs, None, torch.ones(2), 0.0)
    with pytest.raises(SilentlyWrong, match="keeps nothing"):
        sampling().top_k_renorm_probs(probs, None, 0)
