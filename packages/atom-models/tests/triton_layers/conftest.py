"""Tests of this folder run on a GPU, or with TRITON_INTERPRET=1; elsewhere they are not collected."""

from __future__ import annotations

from triton_interpreter import what_to_ignore

collect_ignore_glob = what_to_ignore()
