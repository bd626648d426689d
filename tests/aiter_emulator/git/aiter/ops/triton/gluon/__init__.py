"""Kernels in Gluon."""
