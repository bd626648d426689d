"""`Request`: all that changes about a request while it is in the engine. Owned by the scheduler."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import msgspec

from atom_core.kv_cache import BlockTable
from atom_core.messages import (
    EngineRequest,
    FinishReason,
    NewRequest,
    PlacedImage,
    RequestPhase,
    RequestState,
    TokenLogprobs,
    images_within,
)
from atom_core.scheduler.tenant import Tenant
from atom_core.speculation import Trail


class RequestStatus(enum.Enum):
    """Where a request is; a preempted one waits again.

    One that waits for KV has its place among those that run, and its blocks; the contents of some are being loaded.
    """

    WAITING = enum.auto()
    WAITING_FOR_KV = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(slots=True, eq=False)
class Request:
    """Counts, tokens and blocks of one request.

    Attributes:
        key: order among requests once they run, ``(rank, number)``; lower goes first and is preempted last.
        turn: order among the waiting requests of its tenant, like `key`.
        tenant: who pays for it.
        token_ids: prompt and the output tokens whose values have arrived.
        max_tokens: output tokens at most.
        max_computed_tokens: tokens that will ever be computed (the last output token never is).
        ends: the tokens that end it: a stop token with its id, one of the model's with None.
        min_tokens: output tokens before these do.
        num_computed_tokens: tokens computed in the cache, those of steps in flight included.
        num_samples_in_flight: tokens sampled by steps in flight, all drafts taken for accepted; their values are not
            known.
        num_drafts_in_flight: how many of these drafts there are.
        num_tokens_in_flight: tokens, these drafts among them, that steps in flight compute.
        num_made_drafts: drafts that the worker has for the next step, once it is through with those in flight.
        forced_token_ids: output tokens that need no sampling; they join `token_ids` when samples before them arrive.
        forced_at: where they stand.
        num_steps_in_flight, last_step_id: steps scheduled with this request and not reported; the last of them.
        num_cached_tokens: prompt tokens found in the prefix cache when the request first ran.
        started: when it first got blocks, in seconds of the scheduler's clock; 0 before that.
        num_tokens_at_worker: tokens that the worker has, or samples in steps in flight; 0 where it does not know the
            request.
        trail: guesses what comes next; None before the first time.
        is_held: it runs and is not scheduled (see `Scheduler.hold`).
        images: the pictures of its prompt, in order.
        num_seen_tokens: tokens up to the end of the last picture that was encoded since the request got its blocks.
    """

    engine_request: EngineRequest
    _: KW_ONLY
    key: tuple[float, int]
    arrival: float
    max_tokens: int
    block_table: BlockTable
    tenant: Tenant = field(default_factory=lambda: Tenant(""))
    turn: tuple[float, int] = (0.0, 0)
    request_id: str = field(init=False)
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    samples: bool = field(init=False)
    max_computed_tokens: int = field(init=False)
    ends: dict[int, int | None] = field(init=False)
    min_tokens: int = field(init=False)
    is_reported_prompt: bool = field(init=False)
    status: RequestStatus = RequestStatus.WAITING
    has_run: bool = False
    num_computed_tokens: int = 0
    num_samples_in_flight: int = 0
    num_drafts_in_flight: int = 0
    num_tokens_in_flight: int = 0
    num_made_drafts: int = 0
    forced_token_ids: list[int] = field(default_factory=list)
    forced_at: int = 0
    num_steps_in_flight: int = 0
    last_step_id: int = -1
    num_cached_tokens: int = 0
    started: float = 0.0
    num_tokens_at_worker: int = 0
    trail: Trail | None = None
    is_held: bool = False
    images: Sequence[PlacedImage] = ()
    num_seen_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        params = self.engine_request.sampling_params
        self.request_id = self.engine_request.request_id
        self.token_ids = list(self.engine_request.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.images = self.engine_request.images
        self.samples = self.max_tokens > 0
        self.max_computed_tokens = self.num_prompt_tokens + max(self.max_tokens, 1) - 1
        of_model = dict.fromkeys(self.engine_request.eos_token_ids)
        self.ends = {token_id: token_id for token_id in params.stop_token_ids or ()} | of_model
        # A grammar at its end leaves nothing but a token that ends.
        self.min_tokens = params.min_tokens if params.structured_outputs is None else 0
        self.is_reported_prompt = params.prompt_logprobs is None

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute now, forced and sampled ones among them; 0 for a request that its steps in flight end."""
        num_tokens = len(self.token_ids) + self.num_samples_in_flight + len(self.forced_token_ids)
        most = self.max_computed_tokens
        return (num_tokens if num_tokens < most else most) - self.num_computed_tokens

    @property
    def num_settled_tokens(self) -> int:
        """Tokens computed in the cache whatever becomes of drafts in flight."""
        return self.num_computed_tokens - self.num_drafts_in_flight

    @property
    def has_no_gap(self) -> bool:
        """Whether a model that drafts has followed all tokens that are computed in the cache."""
        return self.block_table.num_followed_tokens == self.num_computed_tokens

    @property
    def has_outputs(self) -> bool:
        """Whether the values of output tokens have arrived."""
        return len(self.token_ids) > self.num_prompt_tokens

    @property
    def may_be_forced(self) -> bool:
        """Whether it is settled where forced tokens would stand."""
        has_drafts = self.num_drafts_in_flight or self.num_made_drafts
        return self.num_samples_in_flight > 0 and not (self.forced_token_ids or has_drafts)

    @property
    def may_have_drafts(self) -> bool:
        """Whether drafts can be verified: masks are made for one position."""
        return not self.engine_request.sampling_params.is_constrained

    @property
    def is_plain(self) -> bool:
        """Whether its samples are drawn without a look at where they stand, or at what came before."""
        return not self.engine_request.sampling_params.needs_history

    @property
    def is_for_peer(self) -> bool:
        """Whether another engine goes on from the prompt."""
        params = self.engine_request.sampling_params.kv_transfer_params
        return params is not None and params.do_remote_decode and self.engine_request.sample_index == 0

    @property
    def num_passed_tokens(self) -> int:
        """Tokens behind which all later queries are; a peer that goes on from the prompt computes its last one anew."""
        return min(self.num_settled_tokens, self.num_prompt_tokens - 1) if self.is_for_peer else self.num_settled_tokens

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Prompt logprobs are asked for and not complete; until then every prompt token must be computed."""
        return not self.is_reported_prompt and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def needs_whole_prompt(self) -> bool:
        """Every prompt token must be computed, whatever the prefix cache has."""
        pools_earlier = self.engine_request.kind == "embed" and self.engine_request.pooling.kind != "last"
        return pools_earlier or self.needs_prompt_logprobs

    def admit(self, num_cached_tokens: int) -> None:
        """The request got its blocks; the first `num_cached_tokens` tokens are computed already."""
        self.status = RequestStatus.RUNNING
        self.num_computed_tokens = num_cached_tokens
        if not self.has_run:
            self.has_run = True
            self.num_cached_tokens = num_cached_tokens

    def wait_for_kv(self, num_cached_tokens: int) -> None:
        """The request got its blocks, and will have so many computed tokens once the contents of some are loaded."""
        self.status = RequestStatus.WAITING_FOR_KV
        self.num_computed_tokens = num_cached_tokens

    def state(self) -> RequestState:
        """Where it stands."""
        phase: RequestPhase = "prefilling" if self.num_computed_tokens < self.num_prompt_tokens else "decoding"
        if self.status is RequestStatus.WAITING:
            phase = "preempted" if self.has_run else "waiting"
        elif self.status is RequestStatus.WAITING_FOR_KV:
            phase = "waiting for kv"
        num_output_tokens = len(self.token_ids) - self.num_prompt_tokens
        return RequestState(self.engine_request.caller_id, phase, self.num_settled_tokens, num_output_tokens)

    def leave(self, status: RequestStatus) -> None:
        """The request lost its blocks: it waits again, or is finished."""
        self.status = status
        self.num_computed_tokens = 0
        self.num_tokens_at_worker = 0
        self.num_made_drafts = 0
        self.num_seen_tokens = 0
        self.is_held = False

    def images_to_encode(self, num_new_tokens: int) -> Sequence[PlacedImage]:
        """The pictures that its next tokens are the first to need; each is encoded whole."""
        first = max(self.num_computed_tokens, self.num_seen_tokens)
        return images_within(self.images, first, self.num_computed_tokens + num_new_tokens)

    def for_worker(self, images: tuple[PlacedImage, ...]) -> NewRequest:
        """The state that the worker must create, with its pictures as they are sent. All token ids are known by now."""
        params = self.engine_request.sampling_params
        if params.prompt_logprobs is not None and not self.needs_prompt_logprobs:
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return NewRequest(
            request_id=self.request_id,
            # Prompts are long, and that of the engine's request never changes.
            token_ids=self.token_ids.copy() if self.has_outputs else self.engine_request.token_ids,
            num_prompt_tokens=self.num_prompt_tokens,
            sampling_params=params,
            eos_token_ids=self.engine_request.eos_token_ids,
            sample_index=self.engine_request.sample_index,
            pooling=self.engine_request.pooling if self.engine_request.kind == "embed" else None,
            num_first_tokens=self.engine_request.num_first_tokens,
            adapter_id=self.engine_request.adapter_id,
            images=images,
        )

    def take_prompt_logprobs(self, first: int, entries: list[TokenLogprobs] | None) -> None:
        """Entries for the prompt tokens after `first`; those known from before a preemption are skipped."""
        if entries and not self.is_reported_prompt:
            self.prompt_logprobs += entries[max(len(self.prompt_logprobs) - first, 0) :]

    def report_prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """All prompt logprobs, the first time; None where not asked for."""
        if self.is_reported_prompt:
            return None
        self.is_reported_prompt = True
        entries, self.prompt_logprobs = self.prompt_logprobs, []
        return entries

    def force(self, token_ids: list[int]) -> None:
        """The samples in flight will be the first of `token_ids`; the others follow without being sampled."""
        num_known = len(self.token_ids)
        for place, token_id in enumerate(token_ids):
            if self._end_at(token_id, num_known + place + 1)[0] is not None:
                # Nothing is sampled any more, so nothing needs to be computed.
                self.max_computed_tokens = self.num_computed_tokens
                token_ids = token_ids[: place + 1]
                break
        self.forced_at = num_known + self.num_samples_in_flight
        self.forced_token_ids = token_ids[self.num_samples_in_flight :]

    def take_forced(self, num_arrived: int) -> list[int]:
        """The forced tokens, if they follow the `num_arrived` samples that are about to be appended."""
        if len(self.token_ids) + num_arrived != self.forced_at:
            return []
        token_ids, self.forced_token_ids = self.forced_token_ids, []
        return token_ids

    def untold_token_ids(self, end: int) -> list[int]:
        """Those of the first `end` tokens that the worker neither has nor samples: they were forced."""
        first = self.num_tokens_at_worker
        if self.forced_token_ids:
            return self.forced_token_ids[first - self.forced_at : max(end - self.forced_at, 0)]
        return self.token_ids[first:end]

    def reject(self, num_drafts: int) -> None:
        """So many of the drafts that were counted as computed are not what was sampled."""
        self.num_computed_tokens -= num_drafts
        self.num_tokens_at_worker -= num_drafts
        # Steps with drafts are followed.
        self.block_table.num_followed_tokens -= num_drafts

    def append(self, token_ids: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """Output tokens arrived: those up to the one that ends the request, why it does, and the stop token id."""
        for place, token_id in enumerate(token_ids, start=1):
            self.token_ids.append(token_id)
            finish_reason, stop_reason = self._end_at(token_id, len(self.token_ids))
            if finish_reason is not None:
                return token_ids[:place], finish_reason, stop_reason
        return token_ids, None, None

    def _end_at(self, token_id: int, num_tokens: int) -> tuple[FinishReason | None, int | None]:
        """Whether `token_id` ends the request as the last of `num_tokens` tokens, and the stop token id that does."""
        num_output_tokens = num_tokens - self.num_prompt_tokens
        # The sampler masks what ends a request before min_tokens others have come.
        if token_id in self.ends and num_output_tokens > self.min_tokens:
            return "stop", self.ends[token_id]
        return ("length", None) if num_output_tokens >= self.max_tokens else (None, None)
