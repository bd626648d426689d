"""A module that users of ROCm/ATOM know by name."""
