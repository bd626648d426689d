"""`QueueLimits`: how much may run and wait, in samples and in prompt tokens, of all and of each tenant."""

from __future__ import annotations

from dataclasses import dataclass

from atom_core.errors import InvalidRequestError

# Limits of the queue that are not set are this many times what can run.
QUEUE_FACTOR = 4
# About 100 MB of token ids, in each of the processes that hold them.
LEAST_QUEUED_TOKENS = 2**21


@dataclass(frozen=True, kw_only=True)
class Load:
    """Samples that are open or asked for, and the tokens of their prompts."""

    num_samples: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """The limits of an engine's queue.

    Attributes:
        max_num_seqs: samples that run at once.
        max_num_queued_requests: samples that may wait beside them.
        max_num_queued_tokens: tokens of the prompts of all that run or wait.
    """

    max_num_seqs: int
    max_num_queued_requests: int
    max_num_queued_tokens: int

    @classmethod
    def of(cls, max_num_seqs: int, cache_tokens: int, *, samples: int | None, tokens: int | None) -> QueueLimits:
        """The limits that are set; those that are not follow from what can run.

        Args:
            cache_tokens: tokens that the KV cache holds.
        """
        return cls(
            max_num_seqs=max_num_seqs,
            max_num_queued_requests=QUEUE_FACTOR * max_num_seqs if samples is None else samples,
            max_num_queued_tokens=max(QUEUE_FACTOR * cache_tokens, LEAST_QUEUED_TOKENS) if tokens is None else tokens,
        )

    def check(self, wanted: Load, *, open_load: Load, own_load: Load | None, n: int = 1) -> None:
        """Whether there is room for `wanted`.

        Args:
            open_load: what everybody has open.
            own_load: what the asking tenant has open; None if there are no tenants. A tenant leaves at least as much
                room as it takes, so that others find some however much it asks for.
            n: samples of each prompt, for the message.

        Raises:
            InvalidRequestError: with code "queue_full" try again later; other codes mean that it could never be.
        """
        most = self.max_num_seqs + self.max_num_queued_requests
        samples = f"max_num_seqs = {self.max_num_seqs}, max_num_queued_requests = {self.max_num_queued_requests}"
        param = "n" if n > 1 else "prompt"
        if wanted.num_samples > most:
            message = f"{wanted.num_samples // n} prompts with n = {n} are {wanted.num_samples} samples; at most {most}"
            raise InvalidRequestError(f"{message} may run and wait ({samples}): ask for fewer", param)
        tokens = f"max_num_queued_tokens = {self.max_num_queued_tokens}"
        if wanted.num_tokens > self.max_num_queued_tokens:
            message = f"the prompts have {wanted.num_tokens} tokens together; at most {self.max_num_queued_tokens}"
            raise InvalidRequestError(f"{message} may run and wait ({tokens}): send fewer at once", "prompt")
        for what, limits, asked, held, own, limit in (
            ("samples", samples, wanted.num_samples, open_load.num_samples, own_load and own_load.num_samples, most),
            (
                "prompt tokens",
                tokens,
                wanted.num_tokens,
                open_load.num_tokens,
                own_load and own_load.num_tokens,
                self.max_num_queued_tokens,
            ),
        ):
            if held + asked > limit:
                message = f"{held} {what} run or wait, of at most {limit}, and there is no room for {asked} more"
                raise InvalidRequestError(f"{message} ({limits}): try again later", code="queue_full")
            # A first request may always take what is free.
            if own and own + asked > limit - held:
                message = f"{own} {what} of this key run or wait; of {limit - held} that are free as many are left to"
                raise InvalidRequestError(f"{message} others ({limits}): try again later", code="queue_full")
