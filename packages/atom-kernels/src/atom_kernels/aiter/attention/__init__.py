"""Attention on AITER's kernels: how they want the cache to lie, what each can do, and the backends made of them."""
