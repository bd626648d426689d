"""Linears on AITER whose weights and rows are both rounded: fp8 by rows and by blocks, int8, MXFP4."""
