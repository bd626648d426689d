"""One module for each family of kernels."""
