"""Every operator at the shapes of published models on one GPU: time, share of the GPU's best, ratio to torch."""

from benchmarks.kernels.command import add_arguments, all_cases, describe, make_document, measure, run
from benchmarks.kernels.table import kernels_table

__all__ = ["add_arguments", "all_cases", "describe", "kernels_table", "make_document", "measure", "run"]
