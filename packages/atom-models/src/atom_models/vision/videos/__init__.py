"""Videos: which of their frames a model sees, in which size, and what a text says of them. Torch-free."""

from atom_models.vision.videos.defaults import KIMI, QWEN2, QWEN3, VideoDefaults
from atom_models.vision.videos.marks import VideoMarks
from atom_models.vision.videos.rules import FrameSize
from atom_models.vision.videos.spec import VideoSpec

__all__ = ["KIMI", "QWEN2", "QWEN3", "FrameSize", "VideoDefaults", "VideoMarks", "VideoSpec"]
