"""Whole answers: gathers the news of a `Generation` into one `Collected` for each choice."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from atom_core import CompletionLogprobs
from atom_server.generation.generation import Generation
from atom_server.schemas.answers import Finish


@dataclass
class Collected:
    """One finished sample."""

    index: int
    text: str = ""
    pieces: list[tuple[str, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[CompletionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[CompletionLogprobs] = field(default_factory=list)
    finish_reason: Finish = "stop"
    stop_reason: int | str | None = None
    embedding: list[float] | None = None

    @property
    def size(self) -> int:
        """The number of its tokens and log-probabilities: the work of writing it."""
        lists = (self.logprobs, self.prompt_logprobs)
        return len(self.token_ids) + sum(len(entries) * (1 + len(entries[0].top)) for entries in lists if entries)


async def collect(request: Request, generation: Generation) -> list[Collected]:
    """Every choice of `generation`, in order; closes it, however it ends."""
    choices = [Collected(index) for index in range(generation.num_choices)]
    try:
        while (news := await generation.news()) is not None:
            for index, output in news:
                choice = choices[index]
                choice.pieces.append((output.text_delta, len(output.output_tokens)))
                choice.token_ids += output.output_tokens
                choice.logprobs += output.logprobs or ()
                choice.prompt_logprobs += output.prompt_logprobs or ()
                choice.embedding = output.embedding or choice.embedding
                if output.finished:
                    choice.finish_reason = "length" if output.finish_reason == "length" else "stop"
                    choice.stop_reason = output.stop_reason
    finally:
        generation.report(request.state.record)
        await generation.close()
    for choice in choices:
        choice.text = "".join(text for text, _ in choice.pieces)
        # Samples of one prompt share its log-probabilities, which come with the first sample's news.
        choice.prompt_logprobs = (
            choice.prompt_logprobs or choices[choice.index - choice.index % generation.n].prompt_logprobs
        )
    return choices
