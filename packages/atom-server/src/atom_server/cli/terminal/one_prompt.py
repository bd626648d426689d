"""One prompt, completed by an engine of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from atom_core import AsyncEngine, EngineArgs, SamplingParams
from atom_core.engine.inputs.checked_prompts import CheckedPrompts
from atom_server.cli.terminal.engine_chats import chats_of
from atom_server.cli.terminal.engine_text import print_stream, running_engine, speed, tokenizer_of
from atom_server.options import ServerOptions
from atom_server.schemas.fields.content import Part, shown_with


def stream_text(
    args: EngineArgs,
    prompt: str,
    params: SamplingParams,
    options: ServerOptions,
    *,
    is_chat: bool,
    shown: Sequence[Part] = (),
) -> int:
    """Start an engine, complete `prompt`, print text and (to stderr) speed.

    Args:
        options: say how pictures are decoded.
        is_chat: the prompt is what a user says.
        shown: the pictures and videos that go before it.
    """

    async def work() -> int:
        async with running_engine(args) as engine:
            checked = await (_chat(engine, options, prompt, shown) if is_chat else _text(engine, prompt))
            _, last = await print_stream(engine, checked, params)
            print()
            print(speed(last), file=sys.stderr)
        return 0

    return asyncio.run(work())


async def _chat(engine: AsyncEngine, options: ServerOptions, prompt: str, shown: Sequence[Part]) -> CheckedPrompts:
    with chats_of(engine, options) as chats:
        return await chats.prompt([{"role": "user", "content": shown_with(prompt, shown)}])


async def _text(engine: AsyncEngine, prompt: str) -> CheckedPrompts:
    checked = await engine.check_prompts([tokenizer_of(engine).encode(prompt)])
    print(prompt, end="", flush=True)
    return checked
