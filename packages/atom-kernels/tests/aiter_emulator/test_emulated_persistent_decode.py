"""Paged decode that workgroups share by a schedule, emulated."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from paged_sequences import PagedSequences
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
NAMES = ("work_metadata_ptrs", "work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


class Step:
    """Sequences of up to two queries over fp8 pages of 1024, and the schedule of one step."""

    def __init__(self, package: ModuleType, heads: int = 4, page_size: int = 1024) -> None:
        paged = PagedSequences.of([1030, 9, 1025], page_size, 2, 128, torch.float32)
        scales = torch.rand(2, *paged.keys.shape[:3], 1) + 0.5
        stored = paged.stored_as(package.dtypes.fp8, *scales)
        self.exact = PagedSequences(
            stored.keys.float() * scales[0], stored.values.float() * scales[1], paged.table, paged.lengths
        )
        self.starts = [0, 2, 4, 5]
        counts = [-(-length // page_size) for length in paged.lengths.tolist()]
        self.given = {
            "Q": torch.randn(5, heads, 128).to(BF16),
            "K": stored.x_packed(),
            "V": stored.shuffled(),
            "output": torch.empty(5, heads, 128, dtype=BF16),
            "max_qlen": 2,
            "qo_indptr": torch.tensor(self.starts, dtype=torch.int32),
            "kv_indptr": torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32),
            "kv_indices": torch.cat([paged.table[row, :count] for row, count in enumerate(counts)]),
            "context_lens": paged.lengths,
            "K_QScale": scales[0, ..., 0].transpose(1, 2).contiguous(),
            "V_QScale": scales[1, ..., 0].transpose(1, 2).contiguous(),
            "mask": 1,
        }
        shapes = package.get_pa_metadata_info_v1(3, 2)
        self.buffers = dict(zip(NAMES, [torch.empty(shape, dtype=dtype) for shape, dtype in shapes], strict=True))
        package.get_pa_metadata_v1(
            self.given["qo_indptr"],
            self.given["kv_indptr"],
            paged.lengths,
            heads // 2,
            2,
            True,
            *self.buffers.values(),
            kv_granularity=page_size,
            block_size=page_size,
        )

    def run(self, package: ModuleType, **changes) -> torch.Tensor:
        buffers = {name: self.buffers[name] for name in NAMES[1:]}
        package.pa_persistent_fwd(**self.given | buffers | changes)
        return self.given["output"]


def test_it_attends_by_its_schedule(git_aiter: ModuleType):
    step = Step(git_aiter)
    assert step.buffers["reduce_indptr"][-1] > 0
    expected = step.exact.attention(step.given["Q"], step.starts)
    torch.testing.assert_close(step.run(git_aiter), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"mask": 0}, Refused, "no kernel for mask"),
        ({"max_qlen": 33}, Refused, "exceeds maximum available qTile"),
        ({"quant_type": 1}, Refused, "quant 1"),
        ({"softmax_scale": 0.2}, SilentlyWrong, "never reaches the kernel"),
        ({"max_qlen": 1}, SilentlyWrong, "max_qlen is 1"),
        ({"kv_indptr": torch.tensor([0, 1, 2, 4], dtype=torch.int32)}, SilentlyWrong, "stale"),
        ({"K_QScale": None}, SilentlyWrong, "without K_QScale"),
    ],
)
def test_it_refuses_and_finds(git_aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        Step(git_aiter).run(git_aiter, **changes)


def test_it_has_pages_of_1024_only(git_aiter: ModuleType):
    with pytest.raises(Refused, match="pages of 16"):
        Step(git_aiter, page_size=16).run(git_aiter)
