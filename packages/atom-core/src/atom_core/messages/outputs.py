"""What leaves the engine: tokens of a request, then text."""

from __future__ import annotations

from typing import Literal

import msgspec

from atom_core.messages.kv_transfer import KVTransferParams

FinishReason = Literal["stop", "length", "abort", "error"]


class TokenLogprobs(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """Log-probabilities at one position: of the chosen token, and of the most likely ones, best first.

    `top` never repeats an id. `rank` is 1 for the most likely token.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class CompletionLogprobs(msgspec.Struct, gc=False, frozen=True):
    """A `TokenLogprobs` with the texts of its tokens.

    Answers keep a million of these: `top` is a tuple, which the garbage collector does not go through.
    """

    token_id: int
    token: str
    logprob: float
    rank: int
    top: tuple[tuple[int, str, float], ...]


class EngineOutput(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """News of one request from the scheduler. `stop_reason` is the stop token id where one ended it.

    `error_code` says that the error is the request's own, and of which kind, e.g. "invalid_grammar".
    `num_draft_tokens` were guessed in this step, and `num_accepted_tokens` of `new_token_ids` are such guesses.
    `started` is when the request first got blocks, by the clock of its `arrival_time`; 0 before that.
    `kv_transfer_params` come with the end of a prompt that was computed for another engine.
    """

    request_id: str
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    embedding: list[float] | None = None
    error_code: str | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    started: float = 0.0
    kv_transfer_params: KVTransferParams | None = None


class OffloadStats(msgspec.Struct, frozen=True):
    """Blocks that left the KV cache. The first four count as they stand, the others since the start.

    Attributes:
        num_in_memory, num_memory_places: blocks in host memory, and how many it holds.
        num_on_disk, num_disk_places: blocks on the disk, and how many it holds.
        num_saved: blocks that went to memory.
        num_not_saved: blocks that were lost: transfers used all of the memory, or it had no room for them until the
            disk had them.
        num_loaded_from_memory, num_loaded_from_disk: blocks that came back.
        num_failed: loads that found a damaged or unreadable block, whose tokens were computed again.
    """

    num_in_memory: int
    num_memory_places: int
    num_on_disk: int
    num_disk_places: int
    num_saved: int
    num_not_saved: int
    num_loaded_from_memory: int
    num_loaded_from_disk: int
    num_failed: int


class KVTransferStats(msgspec.Struct, frozen=True):
    """Prompts that engines compute for each other. The first two count as they stand, the others since the start.

    Attributes:
        num_kept_prompts: prompts that wait for a peer to fetch them.
        num_free_places: blocks for which there is memory beside those.
        num_sent_prompts, num_expired_prompts: prompts that a peer fetched, or did not fetch in time.
        num_not_kept_prompts: prompts for which there was no memory.
        num_fetched_blocks: blocks that came from peers.
        num_failed_fetches: prompts that should have come from a peer, and were computed here.
    """

    num_kept_prompts: int
    num_free_places: int
    num_sent_prompts: int
    num_expired_prompts: int
    num_not_kept_prompts: int
    num_fetched_blocks: int
    num_failed_fetches: int


# Bounds of the sizes by which steps are counted, in tokens.
STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class StepStats(msgspec.Struct, frozen=True):
    """Counts after a step, for logs, load and health.

    `num_drafts` counts rows of steps with draft tokens; `num_accepted_tokens_per_pos` how often the first token of a
    draft was accepted, the second, and so on. `num_kept_output_tokens` are those of requests that ended, by which
    others are guessed. The `num_late_` counts are those of `ModelOutput`. `num_waiting_for_kv` of the running requests
    wait for blocks that are being loaded; `offload` is None where no block is kept elsewhere, and `kv_transfer` where
    no other engine computes prompts for this one, or this one for others. `num_steps_by_size` has the steps of at most
    each of `STEP_SIZES` tokens and not of the one before, and those of more at last; `num_step_tokens` is the sum of
    their tokens.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_forced_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_steps_by_size: tuple[int, ...] = ()
    num_step_tokens: int = 0
    num_not_finite: int = 0
    num_waiting_for_grammar: int = 0
    num_late_captures: int = 0
    num_late_compilations: int = 0
    num_expert_moves: int = 0
    num_kept_output_tokens: int = 0
    num_waiting_for_kv: int = 0
    offload: OffloadStats | None = None
    kv_transfer: KVTransferStats | None = None


class RequestOutput(msgspec.Struct, gc=False, frozen=True):
    """News of one sample of a request, as text.

    Attributes:
        request_id: the engine's, of one prompt; `index` numbers its samples.
        output_tokens: token ids new since the last news.
        finished: no more will come of this sample.
        finish_reason: "stop", "length", "abort" or "error"; None while it runs.
        text_delta: text that these tokens settled; characters never come in halves.
        stop_reason: the stop string or token id that ended it.
        logprobs: one entry for each of `output_tokens`, where asked for.
        prompt_logprobs: one entry for each prompt token but the first. They come with the first news or before.
        num_prompt_tokens, num_cached_tokens: tokens of the prompt, and how many of them the prefix cache had.
        num_output_tokens: generated so far.
        queued, ttft, latency: seconds from arrival until it first ran, to the first token, and until now.
        error: what went wrong where finish_reason is "error".
        embedding: the prompt's vector, of length 1, where the request was for one.
        error_code: names an error that is the request's own, e.g. "invalid_grammar"; None where the engine failed.
        num_draft_tokens, num_accepted_tokens: guessed so far, and how many of these are part of the output.
        kv_transfer_params: what another engine needs to go on from this prompt; with the last news, where asked for.
    """

    request_id: str
    output_tokens: list[int]
    finished: bool
    finish_reason: FinishReason | None = None
    index: int = 0
    text_delta: str = ""
    stop_reason: int | str | None = None
    logprobs: list[CompletionLogprobs] | None = None
    prompt_logprobs: list[CompletionLogprobs] | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    queued: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    error: str | None = None
    embedding: list[float] | None = None
    error_code: str | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    kv_transfer_params: KVTransferParams | None = None
