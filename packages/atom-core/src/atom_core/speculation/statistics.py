"""`DraftStatistics`: how many drafts there were, and how many were accepted."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

# Draft tokens between two lines in the log.
LOG_INTERVAL = 1000


class DraftStatistics:
    """Counts since the start.

    Attributes:
        num_drafts: rows of steps that had draft tokens.
        total_draft_tokens, total_accepted_tokens: draft tokens in these rows, and those that were accepted.
        accepted_by_position: how often the first draft token of a row was accepted, the second, and so on.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_drafts = 0
        self.total_draft_tokens = 0
        self.total_accepted_tokens = 0
        self.accepted_by_position = [0] * num_tokens

    @property
    def acceptance_rate(self) -> float:
        """The part of all draft tokens that was accepted; 0 without any."""
        return self.total_accepted_tokens / self.total_draft_tokens if self.total_draft_tokens else 0.0

    def take(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A row was verified."""
        logged = self.total_draft_tokens // LOG_INTERVAL
        self.num_drafts += 1
        self.total_draft_tokens += num_draft_tokens
        self.total_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.accepted_by_position[position] += 1
        if self.total_draft_tokens // LOG_INTERVAL > logged:
            logger.info(
                "speculation: %d of %d draft tokens accepted (%.2f%%), by position %s",
                self.total_accepted_tokens,
                self.total_draft_tokens,
                100 * self.acceptance_rate,
                " ".join(f"{count / self.num_drafts:.2f}" for count in self.accepted_by_position),
            )
