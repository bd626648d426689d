"""Tests of this folder run on a GPU, or with TRITON_INTERPRET=1; elsewhere they are not collected."""

from __future__ import annotations

import torch

from atom_kernels.settings import triton_interpret

if not (triton_interpret() or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]
