"""The environment of the processes that run tests."""

from __future__ import annotations

import os


def use_one_thread() -> None:
    """For torch and for tokenizers, before they are imported."""
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")


def hide_gpus() -> None:
    """Kernels run in Triton's interpreter on every machine, and processes that run side by side share no GPU."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="")


def interpret_triton() -> None:
    """Triton looks when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
