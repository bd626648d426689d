"""Drawing tokens: exact, and independent of the batch."""

from atom_kernels.sampling.logprobs import TokenLogprobs, token_logprobs
from atom_kernels.sampling.philox import philox_uniform, philox_uniform_host
from atom_kernels.sampling.reference import sample_reference
from atom_kernels.sampling.sampler import sample
from atom_kernels.sampling.slots import SamplingTables, sample_slots

__all__ = [
    "SamplingTables",
    "TokenLogprobs",
    "philox_uniform",
    "philox_uniform_host",
    "sample",
    "sample_reference",
    "sample_slots",
    "token_logprobs",
]
