"""`Conversation`: turns of a user and a model in the terminal, the work of `atom chat`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from atom_core import AsyncEngine, EngineArgs, InvalidRequestError, SamplingParams
from atom_server.cli.terminal.engine_text import chat_template_of, encode_chat, print_stream, running_engine, speed
from atom_server.errors import APIError
from atom_server.prompts.chat_template import ChatTemplate

T = TypeVar("T")


async def talk(args: EngineArgs, params: SamplingParams, system: str | None) -> None:
    """Start an engine and talk until the user leaves."""
    async with running_engine(args) as engine:
        await Conversation(engine, chat_template_of(engine), params, system).run()


class Conversation:
    """Turns of a user and a model, read from standard input."""

    def __init__(self, engine: AsyncEngine, template: ChatTemplate, params: SamplingParams, system: str | None) -> None:
        self._engine = engine
        self._template = template
        self._params = params
        self._beginning = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, Any]] = list(self._beginning)

    async def run(self) -> None:
        """Read and answer until the end of input."""
        # Reading blocks the loop: nothing else is going on between two turns.
        while (text := _read_line()) is not None:
            if text in ("/exit", "/quit"):
                return
            if text == "/clear":
                self.messages = list(self._beginning)
            elif text:
                await self.answer(text)

    async def answer(self, text: str) -> None:
        """Answer one turn; a turn that cannot be answered is forgotten."""
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            token_ids = encode_chat(self._engine, self._template, messages)
            reply, last = await _interruptible(print_stream(self._engine, token_ids, self._params))
        except (APIError, InvalidRequestError) as error:
            print(f"{error} (/clear starts again)", file=sys.stderr)
            return
        except asyncio.CancelledError:
            print("\n[stopped]", file=sys.stderr)
            return
        print()
        if sys.stdin.isatty():
            print(speed(last), file=sys.stderr)
        self.messages = [*messages, {"role": "assistant", "content": reply}]


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; Ctrl-C cancels it, and only it."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _read_line() -> str | None:
    """A line without its ends; None at the end of input, or on Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    finally:
        signal.signal(signal.SIGINT, previous)
