"""What a backend says of a dtype that it was not written for."""

from __future__ import annotations

import torch

from atom_kernels.dtypes import FLOATS, why_not_dtype


def test_a_dtype_that_a_backend_takes_has_no_reason_against_it():
    assert why_not_dtype(torch.float16, FLOATS) is None


def test_the_reason_names_what_the_backend_takes():
    assert why_not_dtype(torch.int8, FLOATS) == "written for float32, bfloat16 and float16, not torch.int8"
    assert why_not_dtype("float16", ("float32", "bfloat16")) == "written for float32 and bfloat16, not float16"
