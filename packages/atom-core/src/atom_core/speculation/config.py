"""`SpeculationConfig`: by which method tokens are guessed, and how many of them."""

from __future__ import annotations

from typing import Literal

import msgspec

# Tokens that are sampled in one step cost memory for their logits: so many requests may all have their drafts.
DRAFTING_REQS = 16


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation was asked for.

    Attributes:
        method: "ngram" goes on as the request did after the same tokens before.
        num_tokens: drafts of a request in one step, at most.
        prompt_lookup_min, prompt_lookup_max: the last tokens that must have come before, at least, and those that are
            compared at most.
        adaptive: drafts are made only where they are expected to save time.
    """

    method: Literal["ngram"] = "ngram"
    num_tokens: int = 1
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    adaptive: bool = True

    def max_num_samples(self, max_num_seqs: int) -> int:
        """Tokens that one step samples at most, where `max_num_seqs` requests may run."""
        return max(max_num_seqs, min(max_num_seqs, DRAFTING_REQS) * (1 + self.num_tokens))
