"""Kernels in Triton, one module each."""
