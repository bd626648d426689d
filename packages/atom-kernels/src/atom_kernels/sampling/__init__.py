"""Drawing tokens: exact, and independent of the batch."""

from atom_kernels.sampling.contract import SamplingTables, SlotSamplingProblem, sample, sample_slots
from atom_kernels.sampling.drafts import ACCEPT_DRAWS, REJECTED, AcceptProblem, accept_draws
from atom_kernels.sampling.logprobs import TOKEN_LOGPROBS, LogprobsProblem, TokenLogprobs, token_logprobs
from atom_kernels.sampling.masks import BAN_TOKENS, BanProblem, ban_tokens
from atom_kernels.sampling.ops import OPS, SAMPLE_SLOTS
from atom_kernels.sampling.penalties import penalize
from atom_kernels.sampling.philox import philox_uniform

__all__ = [
    "ACCEPT_DRAWS",
    "BAN_TOKENS",
    "OPS",
    "REJECTED",
    "SAMPLE_SLOTS",
    "TOKEN_LOGPROBS",
    "AcceptProblem",
    "BanProblem",
    "LogprobsProblem",
    "SamplingTables",
    "SlotSamplingProblem",
    "TokenLogprobs",
    "accept_draws",
    "ban_tokens",
    "penalize",
    "philox_uniform",
    "sample",
    "sample_slots",
    "token_logprobs",
]
