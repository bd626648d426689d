"""What an engine must be able to do to be measured, and what a measurement is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from benchmarks.picture_prompts import PicturePrompt


class Engine(Protocol):
    """An engine in this process; all sides are timed through these calls.

    Attributes:
        cache_tokens: tokens of full layers that its KV cache holds.
    """

    name: str
    version: str
    cache_tokens: int

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        """Wait until each prompt has got exactly its number of tokens."""
        ...

    def closed_loop(
        self, prompts: Sequence[list[int]], max_tokens: Sequence[int], in_flight: int, temperature: float
    ) -> None:
        """As `generate`, but a prompt is given only when fewer than `in_flight` are unfinished."""
        ...

    def first_token(self, prompt: PicturePrompt) -> None:
        """Wait until a prompt, with its picture, has got one token."""
        ...

    def arrivals(self, prompts: Sequence[list[int]], num_tokens: int, temperature: float) -> list[float]:
        """When, by `time.perf_counter`, every prompt had 1, 2, ... `num_tokens` tokens; none ends before."""
        ...


class Figure(NamedTuple):
    """One measured quantity.

    Attributes:
        figure: what, in words.
        unit: the unit of the values.
        values: one for each repeat; none where `skipped` says why it was not measured.
        about: what `figure` says, for programs: "kind", and the sizes that belong to it.
    """

    figure: str
    unit: str
    values: list[float]
    about: dict[str, Any] = {}  # noqa: RUF012 - never changed
    skipped: str | None = None


@dataclass(frozen=True)
class Sizes:
    """The sizes of the scenarios; see the flags of the command."""

    batch_sizes: Sequence[int]
    contexts: Sequence[int]
    prompts: Sequence[int]
    repeats: int
    long_batch_sizes: Sequence[int] = (1, 8, 32)
    long_contexts: Sequence[int] = (8192, 32768)
    in_flight: int = 64
    profiled_batch_sizes: Sequence[int] = field(default=(32, 128))
