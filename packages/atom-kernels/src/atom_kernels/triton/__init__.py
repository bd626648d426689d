"""What all Triton kernels share: how they are launched, compiled ahead, and kept within a GPU's limits."""
