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
        self.fill(package)

    def run(self, package: ModuleType, **changes) -> torch.Tensor:
        given = self.given | {name: self.buffers[name] for name in NAMES[1:]}
        made = {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
        package.pa_persistent_fwd(**given | made)
        return self.given["output"]

    def fill(self, package: ModuleType, **changes) -> None:
        """The metadata of this step, or of another."""
        given = {
            "seqlens_qo_indptr": self.given["qo_indptr"],
            "pages_kv_indptr": self.given["kv_indptr"],
            "context_lens": self.given["context_lens"],
        }
        made = {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
        page_size, heads = self.given["K"].shape[3], self.given["Q"].shape[1]
        package.get_pa_metadata_v1(
            **given | made,
            num_heads_per_head_k=heads // 2,
            num_heads_k=2,
            is_causal=True,
            **self.buffers,
            kv_granularity=page_size,
            block_size=page_size,
        )


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
        ({"V_QScale": torch.ones(1)}, SilentlyWrong, "V_QScale has shape"),
        ({"V_QScale": torch.Tensor.half}, SilentlyWrong, "V_QScale is torch.float16"),
        ({"V_QScale": lambda s: s.transpose(1, 2).contiguous().transpose(1, 2)}, SilentlyWrong, "V_QScale has strides"),
        ({"Q": torch.Tensor.half}, Refused, "no kernel for torch.float16"),
        ({"Q": lambda q: q[..., :64]}, SilentlyWrong, "heads of 128"),
        ({"K": lambda k: k.flatten(2, 3)}, SilentlyWrong, "K has shape"),
        ({"V": lambda v: v.flatten(2, 3)}, SilentlyWrong, "shuffled layout"),
        ({"V": lambda v: torch.cat([v, v])[::2]}, SilentlyWrong, "other strides between pages"),
        ({"output": lambda out: out[:4]}, SilentlyWrong, "output has shape"),
        ({"output": torch.empty(5, 4, 129, dtype=BF16)[..., :128]}, SilentlyWrong, "output has strides"),
        ({"kv_indices": torch.Tensor.long}, SilentlyWrong, "kv_indices is torch.int64"),
        ({"context_lens": torch.Tensor.long}, SilentlyWrong, "context_lens is torch.int64"),
        ({"work_indptr": lambda t: t.long()}, SilentlyWrong, "work_indptr is torch.int64"),
        ({"work_info": lambda t: t.long()}, SilentlyWrong, "work_info is torch.int64"),
        ({"work_info": lambda t: t.flatten()}, SilentlyWrong, r"works are \[works, 8\]"),
        ({"work_info": lambda t: t[:2]}, SilentlyWrong, "works that work_info does not have"),
        ({"work_indptr": lambda t: t.flip(0)}, SilentlyWrong, "work_indptr holds no schedule"),
        ({"reduce_indptr": lambda t: t.flip(0)}, SilentlyWrong, "reduce_indptr holds no schedule"),
        ({"qo_indptr": torch.tensor([0, 2, 3, 5], dtype=torch.int32)}, SilentlyWrong, "stale: sequence 1 has rows"),
        ({"work_info": lambda t: t + torch.tensor([9] + [0] * 7, dtype=torch.int32)}, SilentlyWrong, "does not have"),
    ],
)
def test_it_refuses_and_finds(git_aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        Step(git_aiter).run(git_aiter, **changes)


def test_it_has_pages_of_1024_only(git_aiter: ModuleType):
    with pytest.raises(Refused, match="pages of 16"):
        Step(git_aiter, page_size=16).run(git_aiter)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pages_kv_indptr": torch.Tensor.long}, "pages_kv_indptr is torch.int64"),
        ({"context_lens": torch.Tensor.long}, "context_lens is torch.int64"),
        ({"context_lens": lambda lengths: lengths[:2]}, "batch sizes"),
        ({"context_lens": lambda lengths: lengths + 1100}, "pages of 1024 for context_lens"),
    ],
)
def test_its_metadata_is_looked_at(git_aiter: ModuleType, changes: dict, words: str):
    with pytest.raises(SilentlyWrong, match=words):
        Step(git_aiter).fill(git_aiter, **changes)


def test_its_result_lies_apart(git_aiter: ModuleType):
    step = Step(git_aiter)
    with pytest.raises(SilentlyWrong, match="share memory"):
        step.run(git_aiter, output=step.given["Q"])
