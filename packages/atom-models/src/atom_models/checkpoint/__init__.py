"""Models on disk, read without torch."""

from atom_models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from atom_models.checkpoint.config_fields import normalize_config
from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_file import GGUFFile, GGUFTensor, read_gguf

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "GGUFFile",
    "GGUFTensor",
    "normalize_config",
    "open_checkpoint",
    "read_gguf",
]
