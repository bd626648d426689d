"""Drawing tokens: exact, and independent of the batch."""

from atom_kernels.sampling.logprobs import TokenLogprobs, token_logprobs
from atom_kernels.sampling.philox import philox_uniform, philox_uniform_host
from atom_kernels.sampling.reference import sample_reference
from atom_kernels.sampling.sampler import sample

__all__ = [
    "TokenLogprobs",
    "philox_uniform",
    "philox_uniform_host",
    "sample",
    "sample_reference",
    "token_logprobs",
]
