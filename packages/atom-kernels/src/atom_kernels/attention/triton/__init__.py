"""Attention over pages in Triton: what runs on any GPU that Triton knows."""
