"""A step's inputs, built on the device from the tables of its requests."""

from atom_kernels.step_inputs.contract import StepInputsProblem, TableWritesProblem, build_step_inputs, write_tables
from atom_kernels.step_inputs.ops import BUILD_STEP_INPUTS, OPS, WRITE_TABLES

__all__ = [
    "BUILD_STEP_INPUTS",
    "OPS",
    "WRITE_TABLES",
    "StepInputsProblem",
    "TableWritesProblem",
    "build_step_inputs",
    "write_tables",
]
