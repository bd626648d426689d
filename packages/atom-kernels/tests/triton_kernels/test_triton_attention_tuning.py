"""Every configuration that tuning tries computes the same attention."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

from atom_kernels.attention.mla.cases import make_problem as make_latent_problem
from atom_kernels.attention.mla.tuning import LatentSubject
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.tuning import PAGED_ATTENTION_TUNING, AttentionSubject
from atom_kernels.platform import detect_platform

DEVICE = detect_platform().device
SUBJECTS = {
    "decode": AttentionSubject(make_problem(4, 2, 64), context=70, device=DEVICE),
    "prefill": AttentionSubject(make_problem(4, 2, 64), prompt=140, device=DEVICE),
    "latent": LatentSubject(make_latent_problem(4, 48, 24, 16, 20), context=70, device=DEVICE),
}


def outputs_of(subject, part):
    for config in subject.candidates(3)[part]:
        try:
            yield subject.calls(part, config, 3)[0]()
        except OutOfResources:
            # Float32 tiles are twice as large as those that candidates are for; the tuner leaves such out, too.
            assert DEVICE != "cpu"


@pytest.mark.parametrize("name", SUBJECTS)
def test_candidates_differ_in_nothing_but_time(name):
    subject, part = SUBJECTS[name], "decode" if name == "latent" else name
    first, *others = outputs_of(subject, part)
    assert len(others) > 3
    for other in others:
        torch.testing.assert_close(other, first, atol=2e-5, rtol=2e-5)


def test_problems_that_share_a_key_share_group_and_head_size():
    problems = PAGED_ATTENTION_TUNING.problems()
    keys = {model: PAGED_ATTENTION_TUNING.key(problem) for model, problem in problems.items()}
    assert keys["Qwen3-0.6B"] != keys["Qwen3-8B"]
    assert PAGED_ATTENTION_TUNING.key(make_problem(8, 2, 128, "bfloat16")) == keys["Qwen3-8B"]
