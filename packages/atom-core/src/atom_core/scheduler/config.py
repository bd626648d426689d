"""`SchedulerConfig`: the limits of a step and of a request."""

from __future__ import annotations

from typing import Literal

import msgspec


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the scheduler keeps to.

    Attributes:
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens computed in one step.
        max_model_len: tokens of a request, prompt and output together.
        long_prefill_share: the part of a step's tokens that one prompt may take while other prompts wait.
        async_scheduling: steps may be scheduled before the results of earlier ones are known.
        scheduler_delay_factor: hold new prompts back for this many times the duration of the last step that began
            one, so that they gather; 0 lets them in at once.
        num_stages: stages of a pipeline, each of which computes a step of its own. The first one has to be told what
            the last one sampled, so a request waits for its tokens, and decodes are spread over as many steps.
        policy: "priority" orders by arrival and priority, lower first; "fcfs" by arrival alone.
        priority_ageing: seconds of waiting that are worth one step of priority; 0 lets no request go before a more
            urgent one, however long it waits.
        max_request_seconds: how long a request may take from its arrival; None sets no limit.
        max_num_image_tokens: tokens of the pictures that one step encodes, which is done whole; 0 where there are none.
        least_image_step: tokens of the largest picture, where a step takes all of a picture or nothing: its tokens see
            each other. 0 where a step may end inside of one.
        whole_prompts: a step takes all of a prompt or nothing: its tokens see those behind them.

    Raises:
        ValueError: a number outside its range, or an unknown policy.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_share: float = 0.5
    async_scheduling: bool = True
    scheduler_delay_factor: float = 0.0
    policy: Literal["priority", "fcfs"] = "priority"
    priority_ageing: float = 10.0
    max_request_seconds: float | None = None
    num_stages: int = 1
    whole_prompts: bool = False
    max_num_image_tokens: int = 0
    least_image_step: int = 0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0.0 < self.long_prefill_share <= 1.0:
            raise ValueError(f"long_prefill_share is {self.long_prefill_share}; it must be above 0 and at most 1")
        if not self.scheduler_delay_factor >= 0.0:
            raise ValueError(f"scheduler_delay_factor is {self.scheduler_delay_factor}; it must be at least 0")
        if not self.priority_ageing >= 0.0:
            raise ValueError(f"priority_ageing is {self.priority_ageing}; it must be at least 0")
        if self.whole_prompts and self.max_model_len > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; a step that takes prompts whole needs room "
                f"for {self.max_model_len}, the longest"
            )
        if self.least_image_step > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; a step of this model takes pictures whole, "
                f"and needs room for {self.least_image_step}, the tokens of one"
            )
        if self.policy not in ("priority", "fcfs"):
            raise ValueError(f"policy is {self.policy!r}; allowed are 'priority' and 'fcfs'")
