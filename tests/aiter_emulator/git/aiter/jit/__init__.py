"""Kernels are compiled when they are first called; here there is nothing to compile."""
