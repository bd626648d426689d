"""Whole engines on one GPU, with dummy weights: throughput, decode steps, prefills and start-up, beside vLLM."""

from benchmarks.gpu.command import add_arguments, run
from benchmarks.gpu.summary import summarize
from benchmarks.gpu.tables import gpu_tables

__all__ = ["add_arguments", "gpu_tables", "run", "summarize"]
