"""Prompts that one engine computes and another goes on from: what is settled before they meet. Torch-free."""
