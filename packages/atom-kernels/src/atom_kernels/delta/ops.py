"""The operators of a delta net: references bound to backends, problems and inputs to check them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from atom_kernels.delta.contract import GatedDeltaProblem, ShortConvProblem, gated_delta, short_conv
from atom_kernels.delta.native import CONV_BACKEND, DELTA_BACKEND
from atom_kernels.delta.torch_backend import bind_gated_delta
from atom_kernels.delta.triton.backend import CONV_BY_TRITON, DELTA_BY_TRITON
from atom_kernels.delta.work import conv_work, delta_work
from atom_kernels.operator import Backend, Op, Tolerance, WeightSpec
from atom_kernels.tolerances import elementwise_tolerance

_DTYPES = (torch.float32, torch.bfloat16)


class Sequences(NamedTuple):
    """A batch as the operators read it, how many slots there are, and the rows of its longest sequence."""

    slots: torch.Tensor
    kept_slots: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_slots: int
    max_query_len: int


def make_sequences(num_rows: int, generator: torch.Generator) -> Sequences:
    """A batch of `num_rows` rows.

    Half of the rows decode, up to 64 of them, the last two with a draft. The others belong to prompts that begin, or go
    on at any token. Where there are three rows, one sequence pads the batch. Most sequences keep their state where they
    found it, and every third one elsewhere. Some slots belong to nobody.
    """
    decodes = min((num_rows + 1) // 2, 64)
    lengths, left = [1] * decodes, num_rows - decodes
    if decodes > 2:
        lengths[-2:] = [2]
    num_decodes = len(lengths)
    if left:
        lengths += [left // 3, left - left // 3] if left > 2 else [left]
    query_lens = torch.tensor(lengths)
    context = torch.randint(1, 200, (len(lengths),), generator=generator)
    context[num_decodes:] *= torch.arange(len(lengths) - num_decodes) % 2
    num_slots = 3 * len(lengths) + 2
    order = torch.randperm(num_slots, generator=generator).int()
    slots, elsewhere, of_drafts = order[: 3 * len(lengths)].reshape(3, -1)
    last = torch.where(torch.arange(len(lengths)) % 3 == 2, elsewhere, slots)
    kept_slots = torch.stack([torch.where(query_lens == 2, of_drafts, -1), last], dim=1).int()
    if num_rows > 2:
        slots[-1 if num_rows < 5 else 0] = -1
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), query_lens.cumsum(0)]).int()
    return Sequences(slots, kept_slots, starts, (context + query_lens).int(), num_slots, int(query_lens.max()))


def _make_conv(problem: ShortConvProblem, num_rows: int, generator: torch.Generator) -> Any:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    made = make_sequences(num_rows, generator)
    # Rows are parts of wider ones, as a projection gives them; so are those of a and b below.
    x = random(num_rows, problem.channels + 3)[:, : problem.channels]
    states = random(made.num_slots, problem.channels, problem.width - 1)
    weights = {"weight": random(problem.channels, problem.width)}
    return weights, (x, torch.full((num_rows, problem.channels), 7.0, dtype=problem.dtype), states, *made[:4])


def _make_delta(problem: GatedDeltaProblem, num_rows: int, generator: torch.Generator) -> Any:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    heads, dtype = problem.num_value_heads, problem.dtype
    made = make_sequences(num_rows, generator)
    weights = {"a_log": torch.rand(heads, generator=generator) * 3 - 2, "dt_bias": random(problem.gates)}
    states = random(made.num_slots, heads, problem.key_dim, problem.value_dim)
    out = torch.full((num_rows, heads, problem.value_dim), 7.0, dtype=dtype)
    qkv = random(num_rows, problem.channels).to(dtype)
    b, a = random(num_rows, heads + problem.gates).to(dtype).split([heads, problem.gates], dim=1)
    return weights, (qkv, a, b, out, states, *made[:4], made.max_query_len)


def _bind_conv(problem: ShortConvProblem, weights: Any) -> Callable[..., None]:
    return lambda *inputs: short_conv(*inputs, weight_CW=weights["weight"])


def _num_states(num_rows: int) -> int:
    """States that the sequences of `make_sequences` read and write."""
    return 2 * len(make_sequences(num_rows, torch.Generator().manual_seed(0)).slots)


def _tolerance(problem: Any) -> Tolerance:
    # A float32 state may be huge beside what is read of it: sums in another order differ by parts of what they add.
    return Tolerance(atol=5e-5, rtol=5e-5) if problem.dtype is torch.float32 else elementwise_tolerance(problem.dtype)


SHORT_CONV = Op(
    name="short_conv",
    contract=short_conv,
    reference=lambda problem, weights, *inputs: short_conv(*inputs, weight_CW=weights["weight"]),
    schema="(Tensor x, Tensor(a!) out, Tensor(b!) states, Tensor slots, Tensor kept_slots, "
    "Tensor query_start_loc, Tensor seq_lens) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        CONV_BY_TRITON,
        CONV_BACKEND,
        Backend(name="torch", implementation="torch, sequence by sequence", bind=_bind_conv),
    ),
    written=(1, 2),
    weights=lambda problem: {"weight": WeightSpec((problem.channels, problem.width), problem.dtype)},
    make_inputs=_make_conv,
    parity_problems=lambda: tuple(
        ShortConvProblem(channels, width, dtype)
        for channels, width in ((1, 2), (7, 4), (96, 4), (1000, 3))
        for dtype in _DTYPES
    ),
    examples=lambda: (ShortConvProblem(8192, 4, torch.bfloat16),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: conv_work(problem, num_rows, _num_states(num_rows)),
)

GATED_DELTA = Op(
    name="gated_delta",
    contract=gated_delta,
    reference=lambda problem, weights, *inputs: gated_delta(
        problem, *inputs, a_log_H=weights["a_log"], dt_bias_G=weights["dt_bias"]
    ),
    schema="(Tensor qkv, Tensor a, Tensor b, Tensor(a!) out, Tensor(b!) states, Tensor slots, Tensor kept_slots, "
    "Tensor query_start_loc, Tensor seq_lens, int max_query_len) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        DELTA_BY_TRITON,
        DELTA_BACKEND,
        Backend(name="torch", implementation="torch, chunks of 64 tokens", bind=bind_gated_delta),
    ),
    written=(3, 4),
    weights=lambda problem: {
        "a_log": WeightSpec((problem.num_value_heads,), torch.float32),
        "dt_bias": WeightSpec((problem.gates,), torch.float32),
    },
    make_inputs=_make_delta,
    parity_problems=lambda: tuple(
        GatedDeltaProblem(*heads, *sizes, dtype, channel_gates)
        for heads, sizes in (((1, 1), (4, 3)), ((2, 4), (16, 32)), ((1, 3), (20, 37)), ((1, 2), (64, 80)))
        for dtype in _DTYPES
        for channel_gates in (False, True)
    ),
    # Qwen3-Next 80B, and Kimi Linear 48B.
    examples=lambda: (
        GatedDeltaProblem(16, 32, 128, 128, torch.bfloat16),
        GatedDeltaProblem(32, 32, 128, 128, torch.bfloat16, channel_gates=True),
    ),
    tolerance=_tolerance,
    work=lambda problem, num_rows: delta_work(problem, num_rows, _num_states(num_rows)),
)

OPS = (SHORT_CONV, GATED_DELTA)
