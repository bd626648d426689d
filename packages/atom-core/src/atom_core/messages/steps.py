"""What crosses between scheduler and worker: one step to run, and what it produced.

Structs that come once for each request and step are not tracked by the garbage collector, which would go through
thousands a second: they cannot be part of a cycle.
"""

from __future__ import annotations

import msgspec

from atom_core.messages.images import PlacedImage
from atom_core.messages.outputs import TokenLogprobs
from atom_core.messages.requests import Pooling, SamplingParams
from atom_core.messages.transfers import BlockTransfers, TransferResult

NOT_FINITE = -2
"""In place of a token id: the logits had no largest number, and nothing could be sampled."""


class NewRequest(msgspec.Struct, frozen=True):
    """State that the worker must create: a request's first step, or its first after a preemption.

    `token_ids` holds prompt and everything generated so far; `num_prompt_tokens` of them are the prompt. `pooling` is
    set where the hidden states of the prompt are asked for. `num_first_tokens` is as in `Prompt`. `adapter_id` is that
    of `EngineRequest`. `images` are the pictures of the prompt; those that the worker has of another request come
    without their pixels.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...]
    sample_index: int
    pooling: Pooling | None = None
    num_first_tokens: int = 0
    adapter_id: int = 0
    images: tuple[PlacedImage, ...] = ()


class ScheduledRequest(msgspec.Struct, gc=False, frozen=True):
    """One request's share of a step: compute tokens ``[num_computed_tokens, num_computed_tokens + num_new_tokens)``.

    `new_block_ids` extend the worker's block tables, one list for each group of layers (the whole tables when the
    request is in `new_requests`); empty where no group has any. Ids behind a group's window mean nothing.
    A decode's input token may still be on the device only (the step before sampled it).

    `num_samples` tokens are sampled, after the last of these tokens and after each of those right before it.
    `draft_token_ids` are the last of these tokens where nobody has sampled them: the worker enters them into its
    history before it computes anything. The last ``num_samples - 1`` tokens stand where tokens are sampled, and are
    guesses: one is accepted if it equals the sample in its place, and all guesses before it are accepted. They are the
    last of `draft_token_ids`, behind tokens that are certain (a grammar left no choice), or, where a model drafts,
    those that the worker made behind the last samples of the request.

    `num_next_drafts` drafts of the tokens after the last accepted one are made behind the samples, by a model that
    shares the blocks: the cache has slots for all of these tokens but the last. The worker keeps them in its history.

    `num_unsettled` drafts of the step before are counted in `num_computed_tokens` though nobody has heard yet whether
    they were accepted: the worker takes off those that were not.
    """

    request_id: str
    num_computed_tokens: int
    num_new_tokens: int
    new_block_ids: list[list[int]]
    num_samples: int
    draft_token_ids: tuple[int, ...] = ()
    num_next_drafts: int = 0
    num_unsettled: int = 0


class StateCopy(msgspec.Struct, gc=False, frozen=True):
    """The states in slot `source` go to slot `target` too; slots count from 1, as in block tables."""

    source: int
    target: int


class SchedulerOutput(msgspec.Struct, frozen=True):
    """One step. `scheduled` is in batch order: decodes first, then prefills.

    `dropped_request_ids` were finished, aborted or preempted since the last step: the worker forgets them
    before it looks at `new_requests`.

    States are copied before the step is computed (behind cached prefixes, to the requests that go on from there) and
    behind it (to be kept with the prefixes that end there).

    Where `is_followed` is false, a model that drafts computes nothing of the step: what it keeps of these tokens is not
    there, and nobody will read it.

    `transfers` move blocks between the cache and other places. A step with nothing scheduled is there for these, and
    waits for a moment until one of those that it awaits has ended.

    `rows_of_engines` is how many tokens each engine has in it, where engines share their experts and take it together.
    With nothing scheduled the experts here compute those of the others.
    """

    step_id: int
    scheduled: list[ScheduledRequest]
    new_requests: list[NewRequest]
    dropped_request_ids: list[str]
    copies_before: tuple[StateCopy, ...] = ()
    copies_behind: tuple[StateCopy, ...] = ()
    transfers: BlockTransfers | None = None
    is_followed: bool = True
    rows_of_engines: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(request.num_new_tokens for request in self.scheduled)


class RequestStepOutput(msgspec.Struct, gc=False, frozen=True):
    """What one request got out of a step: no token unless it sampled, one logprob entry for each token.

    `token_ids` are the drafts that were accepted and the sample after them: 1 to ``num_samples`` tokens. A token of
    `NOT_FINITE` ends the request.

    `prompt_logprobs` covers the prompt tokens ``num_computed_tokens + 1 .. num_computed_tokens + num_new_tokens``
    of this step that lie inside the prompt (entry i judges token i + 1 from the tokens before it). `embedding` comes
    with the step that completes the prompt of a request with pooling.

    `next_draft_token_ids` are guesses of the tokens after the last of `token_ids`: as many as the step asked for.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    embedding: list[float] | None = None
    next_draft_token_ids: tuple[int, ...] = ()


class ModelOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of the step `step_id`, in the order of its `scheduled`.

    `num_late_captures` graphs were captured while a step waited for them, and `num_late_compilations` times torch or
    Triton compiled something, or loaded what was compiled before, since the model was loaded. `num_expert_moves`
    counts mixtures whose experts were placed anew since then. `transfers` are those of the awaited ones that have
    ended.
    """

    step_id: int
    requests: list[RequestStepOutput]
    num_late_captures: int = 0
    num_late_compilations: int = 0
    num_expert_moves: int = 0
    transfers: tuple[TransferResult, ...] = ()
