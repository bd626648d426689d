"""Mixtures of experts on AITER: its routing kernels, and its experts for weights in bfloat16 and float16."""
