"""One log line for each request: what was asked, how it ended, how many tokens, how fast. Never any text."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from atom_core.log_lines import in_log

logger = logging.getLogger("atom_server.request")

# Probes come every few seconds and would drown the rest.
PROBES = frozenset(("/health", "/ready"))


@dataclass(eq=False)
class RequestRecord:
    """What is known of a request by the time it ends; routes fill in what the middleware cannot see.

    Attributes:
        begun: when it came, by the monotonic clock.
        key: the name of the key that it came with; "" where none is asked for.
        answer_id: the id of what is generated for it; None before that.
    """

    request_id: str
    method: str
    path: str
    begun: float = field(default_factory=time.monotonic)
    key: str = ""
    answer_id: str | None = None
    status: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    queued: float = 0.0
    ttft: float = 0.0
    tpot: float = 0.0
    finish_reasons: list[str] = field(default_factory=list)

    def log(self) -> None:
        """Write the line of a request that has ended."""
        level = logging.DEBUG if self.path in PROBES and self.status < 400 else logging.INFO
        if not logger.isEnabledFor(level):
            return
        line = f"{in_log(self.request_id)} {in_log(self.method)} {in_log(self.path)} {self.status}"
        if self.prompt_tokens is not None:
            reasons = ",".join(dict.fromkeys(self.finish_reasons)) or "none"
            line += (
                f" prompt={self.prompt_tokens} cached={self.cached_tokens} output={self.output_tokens}"
                f" ttft={self.ttft * 1e3:.0f}ms tpot={self.tpot * 1e3:.1f}ms finish={reasons}"
            )
        logger.log(level, "%s in %.3fs", line, time.monotonic() - self.begun)
