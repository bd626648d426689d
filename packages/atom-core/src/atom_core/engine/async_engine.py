"""`AsyncEngine`: the API process's side of an engine that runs in its own process. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from atom_core.engine.info import EngineInfo
from atom_core.messages import RequestOutput, SamplingParams, StepStats

if TYPE_CHECKING:
    from atom_core.config import EngineArgs
    from atom_core.tokenization import Tokenizer


class AsyncEngine:
    """An engine in its own process, for asyncio programs such as the server.

    Attributes:
        info: what the engine resolved at start.
        tokenizer: None with `skip_tokenizer_init`.
        stats: counts after the engine's last step; None before the first news.
    """

    info: EngineInfo
    tokenizer: Tokenizer | None
    stats: StepStats | None

    @classmethod
    async def start(cls, args: EngineArgs, *, timeout: float = 600.0) -> AsyncEngine:
        """Start the engine process and wait until it is ready.

        Raises:
            EngineStartError: with the cause as the last line.
        """
        raise NotImplementedError

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """News of all ``n`` samples until each is finished; `RequestOutput.index` tells which. Closing it aborts.

        The request is checked here, at the call, not at the first iteration.

        Raises:
            InvalidRequestError: before anything reaches the engine.
            EngineDeadError: where the engine is already dead. If it dies later, each sample gets an output with
                finish_reason "error".
        """
        raise NotImplementedError

    def validate(self, prompt_token_ids: Sequence[int], sampling_params: SamplingParams) -> None:
        """Raise InvalidRequestError where `generate` would."""
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        """End a request: its stream gets finish_reason "abort" for each open sample. Unknown ids are ignored."""
        raise NotImplementedError

    async def start_profile(self) -> None:
        """Start tracing in the engine process; ProfilerError says what to set where no directory was given."""
        raise NotImplementedError

    async def stop_profile(self) -> None:
        """Stop tracing and write the traces."""
        raise NotImplementedError

    def check_health(self) -> None:
        """Raise EngineDeadError unless the engine's process lives and makes progress."""
        raise NotImplementedError

    @property
    def num_unfinished_requests(self) -> int:
        """Samples that have not finished."""
        raise NotImplementedError

    async def shutdown(self, drain_timeout: float = 0.0) -> None:
        """Let running requests finish for `drain_timeout` seconds, abort the rest, end the process, remove its files."""
        raise NotImplementedError
