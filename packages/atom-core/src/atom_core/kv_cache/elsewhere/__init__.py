"""Blocks whose contents live outside the paged cache, as the scheduler sees them. Torch-free."""
