"""Attention of encoders on a CPU: a text's result depends on that text alone, and the quickest backend is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.encoder import EncoderAttentionProblem
from atom_kernels.attention.encoder.cases import make_problem, make_step
from atom_kernels.mixers import select_mixer
from atom_kernels.native import native_unavailable
from atom_kernels.platform import Facts, platform_from_facts

BACKENDS = [name for name in ("native", "torch") if name != "native" or native_unavailable() is None]
needs_native = pytest.mark.skipif("native" not in BACKENDS, reason=f"native kernels: {native_unavailable()}")
LENGTHS = (1, 7, 64, 65, 200, 33)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("window", "causal"), [(None, False), (20, False), (None, True)])
def test_a_text_gets_the_same_bits_alone_and_in_any_batch(backend: str, dtype: str, window: int | None, causal: bool):
    problem = make_problem(3, 40, dtype, window=window, causal=causal)
    plan = select_mixer(problem, only_backend=backend)
    step = make_step(problem, LENGTHS)
    together, first = step.run(plan)[0], 0
    # Our own kernels give the same bits with any number of threads, torch's only with the same number.
    torch.set_num_threads(1 if backend == "native" else 2)
    for length in LENGTHS:
        rows = slice(first, first + length)
        alone = replace(make_step(problem, [length]), inputs=tuple(x[rows] for x in step.inputs))
        assert torch.equal(alone.run(plan)[0], together[rows])
        first += length


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_no_text_are_zeros_and_texts_of_no_token_are_none(backend: str):
    problem = make_problem(2, 16)
    plan = select_mixer(problem, only_backend=backend)
    step = make_step(problem, [5, 40])
    starts = torch.tensor([0, 0, 5, 45, 45], dtype=torch.int32)
    padded = replace(
        step,
        inputs=tuple(torch.cat((x, torch.full_like(x[:9], float("nan")))) for x in step.inputs),
        geometry=replace(step.geometry, query_start_loc=starts, num_reqs=4),
    )
    out = padded.run(plan)[0]
    assert torch.equal(out[:45], step.run(plan)[0])
    assert not out[45:].any()


@needs_native
def test_queries_whose_heads_lie_apart_are_served():
    problem = make_problem(2, 16)
    plan = select_mixer(problem, only_backend="native")
    step = make_step(problem, [5, 40])
    apart = replace(step, inputs=tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in step.inputs))
    assert torch.equal(apart.run(plan)[0], step.run(plan)[0])


@needs_native
def test_another_dtype_than_planned_is_refused():
    step = make_step(make_problem(2, 16), [5])
    with pytest.raises(TypeError, match=r"planned for torch\.bfloat16, got torch\.float32"):
        step.run(select_mixer(make_problem(2, 16, "bfloat16"), only_backend="native"))


@needs_native
@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make_problem(2, 80), None),
        (make_problem(2, 256, "bfloat16"), None),
        (make_problem(2, 15), "even head_dim up to 256, not 15"),
        (make_problem(2, 258), "even head_dim up to 256, not 258"),
        (make_problem(2, 64, "float16"), "float32 and bfloat16, not float16"),
    ],
    ids=str,
)
def test_what_the_kernels_are_not_written_for_is_left_to_torch(problem: EncoderAttentionProblem, reason: str | None):
    plan = select_mixer(problem, platform_from_facts(Facts(torch_build="cpu")))
    assert plan.backend == ("torch" if reason else "native")
    assert reason is None or reason in str(plan.reasons)
