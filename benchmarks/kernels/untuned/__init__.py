"""How much slower linears and experts of shapes that no table has are than the best that the tuner finds for them."""

from benchmarks.kernels.untuned.command import NAME, add_arguments, run
from benchmarks.kernels.untuned.table import untuned_table

__all__ = ["NAME", "add_arguments", "run", "untuned_table"]
