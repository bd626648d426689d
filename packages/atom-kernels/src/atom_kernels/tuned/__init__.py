"""Launch configurations found by ``python -m atom_kernels tune``, kept as data: nothing is tuned while serving."""

from atom_kernels.tuned.store import TunedRow, tuned_on_arch, tuned_rows

__all__ = ["TunedRow", "tuned_on_arch", "tuned_rows"]
