"""`step_variants`: the one list of steps whose kernels differ, which a warm-up runs before requests bring them.

Kernels are compiled for ranges of rows and not for each number, and captured graphs hold for every length. So a list of
the edges of these ranges, by kinds of steps and of samplers, has all that service launches. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atom_core.messages import SamplingParams

# Rows on both sides of every number from which on a linear, a sampler or attention has another kernel. None is more
# than twice the one before: kernels that share work among requests are told apart by powers of two of their number.
EDGES = (
    *(1, 2, 3, 4, 6, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512),
    *(1024, 2048, 4096, 8192),
)
# Requests of batches of many prompts, and tokens of each: what is shorter, and what is longer, than attention's kernel
# for long prompts wants on the average.
MANY, SHORT, MEDIUM = (17, 64, 128, 512), 8, 160
# Tokens of the prompts that come beside decodes.
BESIDE = (24, 1100)
# Pictures of a prompt: a small one may have fewer patches and tokens than the kernels for many rows want.
PICTURES = (1, 2, 4)
# Rows that are drawn at a time: from 32 on a sampling program takes several chunks.
DRAWN = (1, 2, 33)
GREEDY = SamplingParams(temperature=0.0)
SAMPLERS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=0.8, seed=1),
    "top-k": SamplingParams(temperature=0.8, seed=1, top_k=20),
    "top-p and min-p": SamplingParams(temperature=0.8, seed=1, top_p=0.9, min_p=0.05),
    "penalties": SamplingParams(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
    "bias": SamplingParams(logit_bias={1: 1.0}),
    "allowed tokens": SamplingParams(allowed_token_ids=[1, 2]),
    "bad words": SamplingParams(bad_words_token_ids=[[1], [2, 3]]),
    "fewest tokens": SamplingParams(min_tokens=8, stop_token_ids=[1]),
    "logprobs": SamplingParams(temperature=0.8, seed=1, logprobs=5),
    "logprobs of tokens": SamplingParams(logprobs=1, logprob_token_ids=[1, 2]),
}


@dataclass(frozen=True)
class Rows:
    """So many requests of a step that are alike.

    Attributes:
        count: how many.
        num_cached: tokens of each that are in the cache.
        num_new: tokens of each that are computed, drafts among them.
        num_drafts: the last of these, which are verified.
        num_next_drafts: drafts that a model makes behind the step.
        num_pictures: pictures with which the new tokens begin, each of `StepLimits.picture_tokens`.
    """

    count: int
    num_cached: int
    num_new: int
    num_drafts: int = 0
    num_next_drafts: int = 0
    num_pictures: int = 0


@dataclass(frozen=True)
class Variant:
    """A step that launches something of its own.

    Attributes:
        name: words for people.
        rows: decodes first, then prompts.
        params: how every request samples.
        is_masked: a grammar allows some tokens only.
    """

    name: str
    rows: tuple[Rows, ...]
    params: SamplingParams = GREEDY
    is_masked: bool = False

    @property
    def num_reqs(self) -> int:
        return sum(rows.count for rows in self.rows)

    @property
    def num_tokens(self) -> int:
        return sum(rows.count * rows.num_new for rows in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of its longest request, and of what is sampled and drafted behind it."""
        return max(rows.num_cached + rows.num_new + 1 + rows.num_next_drafts for rows in self.rows)


@dataclass(frozen=True)
class StepLimits:
    """What bounds an engine's steps.

    Attributes:
        max_num_seqs, max_num_tokens: requests and tokens of a step.
        max_model_len: tokens of a request.
        block_size: tokens of a cache block: so many are cached where some are.
        num_drafts: drafts of a request, at most.
        drafts_by_model: a model makes them, behind steps.
        max_num_samples: tokens that a step samples.
        picture_tokens: tokens of the smallest picture; 0 where none is seen.
    """

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    block_size: int
    num_drafts: int = 0
    drafts_by_model: bool = False
    max_num_samples: int = 0
    picture_tokens: int = 0

    def hold(self, variant: Variant) -> bool:
        """Whether service can meet such a step."""
        num_samples = sum(rows.count * (1 + rows.num_drafts) for rows in variant.rows)
        return (
            min(min(rows.count, rows.num_new, rows.num_cached + 1) for rows in variant.rows) > 0
            and variant.num_reqs <= self.max_num_seqs
            and variant.num_tokens <= self.max_num_tokens
            and variant.longest <= self.max_model_len
            and num_samples <= max(self.max_num_samples, self.max_num_seqs)
        )


def step_variants(limits: StepLimits, sizes_told_apart: Iterable[int] = ()) -> list[Variant]:
    """The steps that service can meet and that differ in what they launch, those of most tokens first.

    Args:
        sizes_told_apart: further numbers of tokens at whose edges the model has other kernels.
    """
    sizes = sorted({*EDGES, *sizes_told_apart, limits.max_num_tokens, limits.max_model_len - 1})
    found = [*_prompts(limits, sizes), *_many_prompts(limits), *_decodes(limits), *_mixed(limits), *_samplers(limits)]
    if limits.picture_tokens:
        found += _pictures(limits)
    held = {variant.name: variant for variant in found if limits.hold(variant)}
    return sorted(held.values(), key=lambda variant: -variant.num_tokens)


def _prompts(limits: StepLimits, sizes: list[int]) -> Iterator[Variant]:
    """One prompt, of which nothing or a beginning is cached."""
    cached = limits.block_size
    for size in sizes:
        yield Variant(f"prompt of {size}", (Rows(1, 0, size),))
        yield Variant(f"prompt of {size} behind cached tokens", (Rows(1, cached, size),))
    longest = limits.max_model_len - 2 - SHORT
    yield Variant("short prompt behind the longest", (Rows(1, longest // cached * cached, SHORT),))


def _many_prompts(limits: StepLimits) -> Iterator[Variant]:
    for count in {*MANY, limits.max_num_seqs}:
        for size in (SHORT, MEDIUM):
            for num_cached in (0, limits.block_size):
                behind = " behind cached tokens" if num_cached else ""
                yield Variant(f"{count} prompts of {size}{behind}", (Rows(count, num_cached, size),))


def _decodes(limits: StepLimits) -> Iterator[Variant]:
    """Decodes, with each number of drafts."""
    cached = limits.block_size
    counts = sorted({count for count in (*EDGES, limits.max_num_seqs) if count <= limits.max_num_seqs})
    yield Variant("decode of the longest", (Rows(1, limits.max_model_len - 2 - limits.num_drafts, 1),))
    for count in counts:
        yield Variant(f"{count} decodes", (Rows(count, cached, 1),))
        for number in range(1, limits.num_drafts + 1):
            behind = number if limits.drafts_by_model else 0
            rows = Rows(count, cached, 1 + number, number, behind)
            yield Variant(f"{count} decodes with {number} drafts", (rows,))
            if behind:
                yield Variant(f"{count} decodes before {number} drafts", (Rows(count, cached, 1, 0, behind),))


def _mixed(limits: StepLimits) -> Iterator[Variant]:
    """Decodes beside a prompt, of which nothing or a beginning is cached."""
    cached = limits.block_size
    short = BESIDE[0]
    for count in sorted({*EDGES, limits.max_num_seqs - 1}):
        # Long ones take a while, and what is told apart by decodes is so beside short ones too.
        for size in BESIDE if count in (1, 33, limits.max_num_seqs - 1) else (short,):
            for num_cached in (0, cached):
                behind = " behind cached tokens" if num_cached else ""
                rows = (Rows(count, cached, 1), Rows(1, num_cached, size))
                yield Variant(f"{count} decodes beside a prompt of {size}{behind}", rows)
    for number in range(1, limits.num_drafts + 1):
        rows = (Rows(2, cached, 1 + number, number), Rows(1, 0, short))
        yield Variant(f"decodes with {number} drafts beside a prompt", rows)


def _pictures(limits: StepLimits) -> Iterator[Variant]:
    """Prompts with pictures, of which a beginning of text is cached, or nothing; and one beside a decode.

    Attention has a kernel of its own where tokens see what is behind them, and towers have theirs.
    """
    cached, size = limits.block_size, limits.picture_tokens
    for count in PICTURES:
        for num_cached in (0, cached):
            behind = " behind cached tokens" if num_cached else ""
            rows = Rows(1, num_cached, count * size + SHORT, num_pictures=count)
            yield Variant(f"prompt with {count} pictures{behind}", (rows,))
    yield Variant("decode beside a picture", (Rows(1, cached, 1), Rows(1, 0, size + SHORT, num_pictures=1)))


def _samplers(limits: StepLimits) -> Iterator[Variant]:
    """Each way to sample, on decodes and behind a prompt."""
    cached = limits.block_size
    for name, params in SAMPLERS.items():
        for count in DRAWN:
            yield Variant(f"{name}, {count} decodes", (Rows(count, cached, 1),), params)
        yield Variant(f"{name}, prompt", (Rows(1, 0, SHORT),), params)
    for count in DRAWN:
        yield Variant(f"masks, {count} decodes", (Rows(count, cached, 1),), is_masked=True)
    yield Variant("masks, prompt", (Rows(1, 0, SHORT),), is_masked=True)
    for size in (SHORT, 300, limits.max_num_tokens):
        judged = SamplingParams(temperature=0.0, prompt_logprobs=1)
        yield Variant(f"logprobs of a prompt of {size}", (Rows(1, 0, size),), judged)
