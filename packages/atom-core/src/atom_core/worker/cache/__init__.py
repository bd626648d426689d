"""The memory of the KV cache: how much there is, how layers share its pages, its tensors."""
