"""Module paths of ROCm/ATOM's engine."""
