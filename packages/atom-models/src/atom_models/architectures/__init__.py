"""Model architectures, one a file, and the registry that finds them by name."""

from atom_models.architectures.registry import (
    UnsupportedArchitectureError,
    find_architecture,
    supported_architectures,
)

__all__ = ["UnsupportedArchitectureError", "find_architecture", "supported_architectures"]
