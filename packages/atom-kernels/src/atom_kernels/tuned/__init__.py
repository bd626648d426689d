"""Launch configurations found by ``python -m atom_kernels tune``, kept as data: nothing is tuned while serving."""

from atom_kernels.tuned.store import TunedRow, pick_row, tuned_rows

__all__ = ["TunedRow", "pick_row", "tuned_rows"]
