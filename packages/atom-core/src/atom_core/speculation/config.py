"""`SpeculationConfig`: by which method tokens are guessed, and how many of them."""

from __future__ import annotations

from typing import Literal

import msgspec

# Tokens that are sampled in one step cost memory for their logits: so many at most, unless more requests run than that.
# So few requests may all have their drafts in any case.
MOST_SAMPLES, DRAFTING_REQS = 512, 16


class SuffixConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of suffix lookup; the names and their meaning are those of SuffixDecoding (arXiv 2411.04975).

    Attributes:
        max_tree_depth: tokens that are compared, and drafts behind them, together.
        max_cached_requests: earlier outputs that are kept; 0 looks into the request alone.
        max_spec_factor: drafts for each token that agrees, at most.
        min_token_prob: a draft is made where it followed in this part of the places at least.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation was asked for.

    Attributes:
        method: "ngram" goes on as the request did after the same tokens before, "suffix" as it and earlier outputs most
            often did; in the others a small model drafts behind the one that generates: its own prediction layers
            ("mtp"), the head in `model`, or the whole model there ("draft_model").
        num_tokens: drafts of a request in one step, at most.
        prompt_lookup_min, prompt_lookup_max: the last tokens that must have come before, at least, and those that are
            compared at most, by "ngram".
        adaptive: drafts are made only where they are expected to save time.
        model: the folder of an EAGLE head or of a whole model.
        quantization: number format to which a whole model's plain weights are rounded.
        suffix: bounds of "suffix".
    """

    method: Literal["ngram", "suffix", "mtp", "eagle", "eagle3", "draft_model"] = "ngram"
    num_tokens: int = 1
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    adaptive: bool = True
    model: str | None = None
    quantization: str = "auto"
    suffix: SuffixConfig = SuffixConfig()

    @property
    def is_by_model(self) -> bool:
        """A model makes the drafts, behind the steps of the one that generates."""
        return self.method not in ("ngram", "suffix")

    @property
    def is_by_whole_model(self) -> bool:
        """That model reads tokens alone, and computes the last one of a request too where it is to go on."""
        return self.method == "draft_model"

    @property
    def keeps_by_next(self) -> bool:
        """What that model keeps of a token depends on the token after it."""
        return self.is_by_model and not self.is_by_whole_model

    def max_num_samples(self, max_num_seqs: int) -> int:
        """Tokens that one step samples at most, where `max_num_seqs` requests may run."""
        each = 1 + self.num_tokens
        return max(max_num_seqs, min(max_num_seqs * each, max(MOST_SAMPLES, DRAFTING_REQS * each)))
