"""A model with its weights and its cache, and what is compiled of it."""
