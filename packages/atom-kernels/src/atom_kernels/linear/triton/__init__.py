"""Linears in Triton: kernels of few rows, plain and packed weights, and how they are launched."""
