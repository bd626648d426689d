"""Matrix products of one batch."""
