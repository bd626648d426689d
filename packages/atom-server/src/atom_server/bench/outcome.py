"""How one request of a run went."""

from __future__ import annotations

from dataclasses import dataclass, field


class BenchError(RuntimeError):
    """What was asked for cannot be measured: by the flags, or since the server does not answer as it should."""


@dataclass
class Outcome:
    """How one request went. Times are in seconds from when it was sent; the server's counts of tokens come first.

    Attributes:
        gaps: seconds between one piece of text and the next.
        sent: seconds after the run's start.
        pieces: the text, as it came.
    """

    ttft: float = 0.0
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    error: str = ""
    sent: float = 0.0
    pieces: list[str] = field(default_factory=list)

    def note(self, text: str, elapsed: float) -> None:
        """A piece of text came so many seconds after the request was sent."""
        if self.pieces:
            self.gaps.append(elapsed - self.latency)
        else:
            self.ttft = elapsed
        self.latency = elapsed
        self.pieces.append(text)

    def end(self, elapsed: float) -> None:
        """The answer is whole. One without any text is as late as its end."""
        if not self.pieces:
            self.ttft = self.latency = elapsed

    @property
    def tpot(self) -> float:
        """Seconds for each token but the first; 0 where there is no other."""
        return (self.latency - self.ttft) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else 0.0
