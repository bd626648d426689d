"""Mixers: operators that mix a token with the earlier ones of its request, over a cache that they keep."""

from atom_kernels.mixers.backend import MixerBackend, MixerProblem, MixerRunner
from atom_kernels.mixers.cache_format import CacheFormat
from atom_kernels.mixers.plan import MixerPlan, UnsupportedMixerError, select_mixer

__all__ = [
    "CacheFormat",
    "MixerBackend",
    "MixerPlan",
    "MixerProblem",
    "MixerRunner",
    "UnsupportedMixerError",
    "select_mixer",
]
