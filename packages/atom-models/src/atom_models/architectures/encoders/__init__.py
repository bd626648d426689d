"""Encoders: models that read a text in both directions, for vectors, scores and labels."""
