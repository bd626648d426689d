"""An engine in its own process, and text from it in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from atom_core import AsyncEngine, EngineArgs, RequestOutput, SamplingParams
from atom_server.errors import APIError
from atom_server.prompts.chat_template import ChatTemplate
from atom_server.startup import load_template


@contextlib.asynccontextmanager
async def running_engine(args: EngineArgs) -> AsyncGenerator[AsyncEngine, None]:
    """A started engine that ends with the block."""
    engine = await AsyncEngine.start(args)
    try:
        yield engine
    finally:
        await engine.shutdown(0.0)


def chat_template_of(engine: AsyncEngine) -> ChatTemplate:
    """The model's chat template.

    Raises:
        APIError: the model has none.
    """
    template = load_template(engine.tokenizer, None)
    if template is None:
        raise APIError(400, f"the model {engine.info.model} has no chat template", code="no_chat_template")
    return template


def encode_chat(engine: AsyncEngine, template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation."""
    return _tokenizer(engine).encode(template.render(messages), add_special_tokens=False)


def print_piece(text: str) -> None:
    """Print a piece of a text at once."""
    print(text, end="", flush=True)


async def print_stream(
    engine: AsyncEngine, token_ids: Sequence[int], params: SamplingParams, show: Callable[[str], object] = print_piece
) -> tuple[str, RequestOutput]:
    """Show text as it comes; the whole text and the last news.

    Raises:
        RuntimeError: the engine gave the request up.
    """
    parts: list[str] = []
    last = None
    async with contextlib.aclosing(engine.generate(token_ids, params)) as outputs:
        async for output in outputs:
            parts.append(output.text_delta)
            show(output.text_delta)
            last = output
    if last is None or last.finish_reason in ("abort", "error"):
        raise RuntimeError(f"the engine gave up: {last.error if last is not None else 'no output came'}")
    return "".join(parts), last


def stream_text(args: EngineArgs, prompt: str, params: SamplingParams, *, is_chat: bool) -> int:
    """Start an engine, complete `prompt`, print text and (to stderr) speed."""

    async def work() -> int:
        async with running_engine(args) as engine:
            if is_chat:
                token_ids = encode_chat(engine, chat_template_of(engine), [{"role": "user", "content": prompt}])
            else:
                token_ids = _tokenizer(engine).encode(prompt)
                print(prompt, end="", flush=True)
            _, last = await print_stream(engine, token_ids, params)
            print()
            print(speed(last), file=sys.stderr)
        return 0

    return asyncio.run(work())


def speed(output: RequestOutput) -> str:
    """How a finished request went, in one line."""
    rest = output.num_output_tokens - 1
    seconds = output.latency - output.ttft
    rate = f", {rest / seconds:.1f} tokens/s" if rest > 0 and seconds > 0 else ""
    return f"[{output.num_output_tokens} tokens, first after {output.ttft * 1e3:.0f} ms{rate}]"


def _tokenizer(engine: AsyncEngine):
    if engine.tokenizer is None:
        raise APIError(400, "text needs a tokenizer: leave --skip-tokenizer-init out", code="no_tokenizer")
    return engine.tokenizer
