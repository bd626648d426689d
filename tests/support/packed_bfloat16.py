"""A mark for tests of weights that stay packed beside bfloat16 numbers: CPUs with AMX multiply them plain."""

from __future__ import annotations

import pytest

from atom_kernels.platform import detect_platform

packed_bfloat16 = pytest.mark.skipif(
    "amx_bf16" in detect_platform().cpu_features, reason="a CPU with AMX holds these weights as plain bfloat16"
)
