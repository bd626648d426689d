"""What this machine has, which backends can run on it, and whether bfloat16 is fast."""

from atom_kernels.platform.current import detect_platform, use_platform
from atom_kernels.platform.facts import AITER_ARCHES, Facts
from atom_kernels.platform.platform import Platform, platform_from_facts
from atom_kernels.platform.probing import gather_facts

__all__ = [
    "AITER_ARCHES",
    "Facts",
    "Platform",
    "detect_platform",
    "gather_facts",
    "platform_from_facts",
    "use_platform",
]
