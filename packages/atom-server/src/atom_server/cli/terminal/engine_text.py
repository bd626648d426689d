"""An engine in its own process, and text from it in the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from atom_core import AsyncEngine, EngineArgs, RequestOutput, SamplingParams, Tokenizer
from atom_core.engine.inputs.checked_prompts import CheckedPrompts
from atom_server.errors import APIError


@contextlib.asynccontextmanager
async def running_engine(args: EngineArgs) -> AsyncGenerator[AsyncEngine, None]:
    """A started engine that ends with the block."""
    engine = await AsyncEngine.start(args)
    try:
        yield engine
    finally:
        await engine.shutdown(0.0)


def print_piece(text: str) -> None:
    """Print a piece of a text at once."""
    print(text, end="", flush=True)


async def print_stream(
    engine: AsyncEngine, prompts: CheckedPrompts, params: SamplingParams, show: Callable[[str], object] = print_piece
) -> tuple[str, RequestOutput]:
    """Show what follows one prompt as it comes; the whole text and the last news.

    Raises:
        RuntimeError: the engine gave the request up.
    """
    parts: list[str] = []
    last = None
    async with contextlib.aclosing(engine.submit(prompts, params)) as outputs:
        async for output in outputs:
            parts.append(output.text_delta)
            show(output.text_delta)
            last = output
    if last is None or last.finish_reason in ("abort", "error"):
        raise RuntimeError(f"the engine gave up: {last.error if last is not None else 'no output came'}")
    return "".join(parts), last


def speed(output: RequestOutput) -> str:
    """How a finished request went, in one line."""
    rest = output.num_output_tokens - 1
    seconds = output.latency - output.ttft
    rate = f", {rest / seconds:.1f} tokens/s" if rest > 0 and seconds > 0 else ""
    return f"[{output.num_output_tokens} tokens, first after {output.ttft * 1e3:.0f} ms{rate}]"


def tokenizer_of(engine: AsyncEngine) -> Tokenizer:
    """The tokenizer of `engine`; APIError without one."""
    if engine.tokenizer is None:
        raise APIError(400, "text needs a tokenizer: leave --skip-tokenizer-init out", code="no_tokenizer")
    return engine.tokenizer
