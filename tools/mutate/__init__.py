"""``python -m tools.mutate`` puts mistakes into the product, one at a time, and sees which the tests find."""
