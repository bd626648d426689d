"""`Conversation`: turns of a user and a model, and what the user may do with them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError

from atom_core import InvalidRequestError, SamplingParams
from atom_server.cli.terminal.chatting.partners import Message, Partner, PartnerError
from atom_server.cli.terminal.shown_files import KINDS, part_of_file
from atom_server.errors import APIError
from atom_server.pictures.data_url import PictureError
from atom_server.schemas.chat import ChatMessage
from atom_server.schemas.fields.content import Content, Part, shown_with

T = TypeVar("T")

COMMANDS = {
    "/help": "what there is",
    "/clear": "forget the conversation",
    "/undo": "forget the last turn",
    "/retry": "answer the last turn again",
    "/system TEXT": "begin anew with other instructions; without TEXT with none",
    "/image FILE": "a picture that goes with what is said next",
    "/video FILE": "a video that goes with what is said next",
    "/set NAME VALUE": "temperature, top_p, top_k, max_tokens or seed of the next answers",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with one that was saved",
    "/exit": "end (Ctrl-D too)",
}
_MESSAGES = TypeAdapter(list[ChatMessage])
_SETTINGS = ("temperature", "top_p", "top_k", "max_tokens", "seed")


class CommandError(ValueError):
    """A command that cannot be done; the message says how it is meant."""


class Conversation:
    """Turns with one partner.

    Attributes:
        messages: what was said.
        params: how answers are sampled.
    """

    def __init__(
        self, partner: Partner, params: SamplingParams, system: str | None = None, shown: Sequence[Part] = ()
    ) -> None:
        self._partner = partner
        self._shown = list(shown)
        self.params = params
        self.messages: list[Message] = []
        self._begin(system)

    async def take(self, line: str) -> bool:
        """Do what a line says; whether there may be another one."""
        command, _, rest = line.partition(" ")
        if not line.startswith("/"):
            if line and await self._say(shown_with(line, self._shown)):
                self._shown = []
        elif command in ("/exit", "/quit"):
            return False
        elif command == "/retry":
            await self._retry()
        else:
            try:
                print(self._do(command, rest.strip()), file=sys.stderr)
            except (CommandError, PictureError, OSError) as error:
                print(error, file=sys.stderr)
        return True

    async def _say(self, content: Content) -> bool:
        """Answer one turn. One that fails is forgotten: False; of one that is stopped, what was said is kept."""
        shown: list[str] = []

        def show(piece: str) -> None:
            shown.append(piece)
            print(piece, end="", flush=True)

        asked = [*self.messages, {"role": "user", "content": content}]
        try:
            reply, line = await _interruptible(self._partner.answer(asked, self.params, show))
        except (PartnerError, APIError, InvalidRequestError) as error:
            print(f"{error} (/clear starts again)", file=sys.stderr)
            return False
        except asyncio.CancelledError:
            reply, line = "".join(shown), "[stopped]"
        print()
        if sys.stdin.isatty() or line == "[stopped]":
            print(line, file=sys.stderr)
        if reply:
            self.messages = [*asked, {"role": "assistant", "content": reply}]
        return True

    async def _retry(self) -> None:
        content = self._forget_turn()
        if content is None:
            print("there is no turn yet", file=sys.stderr)
        else:
            await self._say(content)

    def _do(self, command: str, rest: str) -> str:
        if command == "/help":
            return "\n".join(f"{name:17}{meaning}" for name, meaning in COMMANDS.items())
        if command == "/clear":
            self._begin(self._system)
            return "[forgotten]"
        if command == "/undo":
            if self._forget_turn() is None:
                raise CommandError("there is no turn yet")
            return "[forgotten]"
        if command == "/system":
            self._begin(rest or None)
            return "[begun anew]"
        if (kind := command[1:]) in KINDS:
            self._shown.append(part_of_file(kind, Path(_file_of(rest))))
            return f"[pictures and videos that go with what is said next: {len(self._shown)}]"
        if command == "/set":
            return self._set(*rest.partition(" ")[::2])
        if command == "/save":
            Path(_file_of(rest)).write_text(json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n")
            return f"[{len(self.messages)} messages are in {rest}]"
        if command == "/load":
            self.messages = _read_messages(Path(_file_of(rest)))
            return f"[{len(self.messages)} messages]"
        raise CommandError(f"there is no {command}; /help says what there is")

    def _begin(self, system: str | None) -> None:
        self._system = system
        self.messages = [{"role": "system", "content": system}] if system else []

    def _forget_turn(self) -> Content | None:
        """Forget what the user said last and all that came after it; what it was."""
        for place in reversed(range(len(self.messages))):
            if self.messages[place]["role"] == "user":
                content, self.messages = self.messages[place]["content"], self.messages[:place]
                return content
        return None

    def _set(self, name: str, value: str) -> str:
        if name not in _SETTINGS:
            raise CommandError(
                f"/set takes one of {', '.join(_SETTINGS)}, and a value; now they are {self._settings()}"
            )
        try:
            read = json.loads(value)
            self.params = msgspec.convert(msgspec.to_builtins(self.params) | {name: read}, SamplingParams)
        except (ValueError, msgspec.ValidationError, InvalidRequestError) as error:
            raise CommandError(f"{name} cannot be {value!r}: {error}") from None
        return f"[{self._settings()}]"

    def _settings(self) -> str:
        return ", ".join(f"{name} {getattr(self.params, name)}" for name in _SETTINGS)


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; Ctrl-C cancels it, and only it."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _file_of(rest: str) -> str:
    if not rest:
        raise CommandError("name a file")
    return rest


def _read_messages(path: Path) -> list[Message]:
    try:
        read = json.loads(path.read_text())
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from None
    try:
        messages = _MESSAGES.validate_python(read)
    except ValidationError:
        messages = None
    if messages is None or not all("content" in message.model_fields_set for message in messages):
        raise CommandError(f"{path} holds no conversation: a list of objects with role and content")
    return [message.model_dump(exclude_unset=True) for message in messages]
