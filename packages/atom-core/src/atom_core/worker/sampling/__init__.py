"""From logits to token ids; and from hidden states to vectors."""
