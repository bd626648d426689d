"""The ranks that share a model: what workers ask of each other, beside the layers' own collectives."""
