"""vLLM's attention layers and caches over our kernels."""
