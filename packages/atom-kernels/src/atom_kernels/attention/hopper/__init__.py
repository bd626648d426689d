"""Prompts on Hopper: kernels that load and multiply in warps of their own."""
