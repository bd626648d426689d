"""The emulated all-reduce that adds, norms and rounds refuses what AITER's refuses, and finds what it gets wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from emulated_aiter import emulated_aiter
from summing_aiter_ranks import Rank, on_ranks
from tests.aiter_emulator.semantics import machine
from tests.aiter_emulator.semantics.dynamic_quant import lies_by_column
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_kernels.aiter.all_reduce.MAX_BYTES", 1 << 20)


def call(rank: Rank, width: int = 512, rows: int = 2, group: int | None = None, **changed: Any) -> tuple[Any, ...]:
    """Calls as a rank would with rows of ones times their number, and what it was given instead in `changed`."""
    import aiter

    x = torch.ones(rows, width, dtype=BF16).mul(torch.arange(1, rows + 1)[:, None]).to(BF16)
    given: dict[str, Any] = {
        "inp": x,
        "res_inp": x.clone(),
        "res_out": torch.empty_like(x),
        "out": torch.empty(rows, width, dtype=machine.fp8()),
        "scale_out": torch.empty(rows, width // (group or width)),
        "w": torch.ones(width, dtype=BF16),
        "eps": 1e-5,
        **({} if group is None else {"group_size": group}),
        "reg_ptr": rank.peers.buffer,
        "reg_bytes": rank.peers.max_bytes,
        "use_1stage": True,
    } | changed
    function = "fused_allreduce_rmsnorm_quant" + ("" if group is None else "_per_group")
    getattr(aiter, function)(rank.peers.group, *given.values())
    return given["out"].float(), given["scale_out"], given["res_out"]


@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("one_stage", [True, False])
def test_rows_are_summed_added_normed_and_rounded(group: int | None, one_stage: bool):
    for codes, scale, total in on_ranks(2, lambda rank: call(rank, group=group, use_1stage=one_stage)):
        assert torch.equal(total, torch.tensor([3.0, 6.0], dtype=BF16)[:, None].expand(2, 512))
        largest = 240.0  # gfx942's float8
        assert torch.equal(codes, torch.full((2, 512), largest))
        torch.testing.assert_close(scale, torch.full_like(scale, 1 / largest))


def test_scales_of_groups_are_stored_row_by_row_or_group_by_group():
    weight = torch.ones(512, dtype=BF16)
    weight[128:256] = 4

    def work(rank: Rank) -> list[torch.Tensor]:
        ends = [{"w": weight, "bf16_out_ptr": 0, "transpose_scale": by_column} for by_column in (False, True)]
        return [call(rank, group=128, **end)[1] for end in ends]

    for rows, columns in on_ranks(2, work):
        torch.testing.assert_close(columns.view(4, 2).t(), rows)
        assert rows[0].argmax() == 1
        assert [lies_by_column(one) for one in (rows, columns)] == [False, True]


def test_rows_of_zeros_have_a_scale_of_one():
    nothing = torch.zeros(2, 512, dtype=BF16)
    for codes, scale, _ in on_ranks(2, lambda rank: call(rank, inp=nothing.clone(), res_inp=nothing.clone())):
        assert torch.equal(codes, torch.zeros(2, 512))
        assert torch.equal(scale, torch.ones(2, 1))


MISTAKES = [
    (2, {"inp": torch.ones(2, 256, dtype=BF16)}, Refused, "input width == weight width"),
    (6, {}, Refused, "unsupported world_size=6"),
    (2, {"group": 0}, Refused, "group_size > 0"),
    (2, {"group": 12, "scale_out": torch.empty(2, 1)}, Refused, "PACK_SIZE=8"),
    (2, {"group": 96, "width": 768}, Refused, "a power of two"),
    (2, {"group": 1024, "width": 1024}, Refused, "wavefront size"),
    (2, {"group": 128, "width": 576}, Refused, "n divisible by group_size"),
    (2, {"width": 8448}, SilentlyWrong, "nothing is written"),
    (8, {"width": 2880, "use_1stage": False}, SilentlyWrong, "no whole warps"),
    (4, {"width": 400, "use_1stage": False}, SilentlyWrong, "not cut among 4 ranks"),
    (2, {"rows": 200}, SilentlyWrong, "128 KiB at most"),
    (2, {"out": torch.empty(2, 512, dtype=BF16)}, SilentlyWrong, "out is torch.bfloat16"),
    (2, {"scale_out": torch.empty(2, 4)}, SilentlyWrong, "scale_out has shape"),
    (2, {"group": 128, "scale_out": torch.empty(2, 1)}, SilentlyWrong, "scale_out has shape"),
    (2, {"scale_out": torch.empty(2, 1, dtype=BF16)}, SilentlyWrong, "scale_out is torch.bfloat16"),
    (2, {"w": torch.ones(512)}, SilentlyWrong, "w is torch.float32"),
    (2, {"w": torch.ones(1024, dtype=BF16)[::2]}, SilentlyWrong, "w has strides"),
    (2, {"res_inp": torch.ones(512, 2, dtype=BF16).t()}, SilentlyWrong, "res_inp has strides"),
    (2, {"res_inp": torch.ones(1025, dtype=BF16)[1:].view(2, 512)}, SilentlyWrong, "multiple of 16 bytes"),
    (2, {"res_inp": torch.ones(1, 512, dtype=BF16)}, SilentlyWrong, "res_inp has shape"),
    (2, {"reg_ptr": 16}, Refused, "is not registered"),
    (2, {"reg_bytes": 1024}, Refused, "too small"),
]


@pytest.mark.parametrize(("size", "changed", "error", "words"), MISTAKES, ids=[words for *_, words in MISTAKES])
def test_what_is_wrong_is_found(size: int, changed: dict[str, Any], error: type[Exception], words: str):
    def work(rank: Rank) -> None:
        with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")):
            call(rank, **changed)

    on_ranks(size, work)


def test_the_release_on_pypi_has_neither():
    with emulated_aiter("pypi", "gfx942"):
        import aiter

        assert not [name for name in dir(aiter) if name.startswith("fused_allreduce_rmsnorm_quant")]
