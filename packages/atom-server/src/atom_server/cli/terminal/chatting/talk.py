"""A conversation from the first line to the last, with an engine or with a server."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from atom_core import EngineArgs, SamplingParams
from atom_server.cli.terminal.chatting.conversation import Conversation
from atom_server.cli.terminal.chatting.lines import user_lines
from atom_server.cli.terminal.chatting.partners import EnginePartner, Partner, ServerPartner
from atom_server.cli.terminal.engine_chats import chats_of
from atom_server.cli.terminal.engine_text import running_engine
from atom_server.options import ServerOptions
from atom_server.schemas.fields.content import Part


async def talk_to_engine(
    args: EngineArgs,
    params: SamplingParams,
    system: str | None,
    *,
    options: ServerOptions,
    shown: Sequence[Part] = (),
) -> None:
    """Start an engine and talk until the user leaves; `shown` goes with the first turn.

    Args:
        options: say how pictures are decoded.
    """
    async with running_engine(args) as engine:
        with chats_of(engine, options) as chats:
            await _talk(EnginePartner(engine, chats), params, system, shown)


async def talk_to_server(
    url: str,
    params: SamplingParams,
    system: str | None,
    *,
    key: str | None,
    model: str | None,
    shown: Sequence[Part] = (),
) -> None:
    """Talk to a server until the user leaves."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    address = url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        await _talk(ServerPartner(client, model), params, system, shown)


async def _talk(partner: Partner, params: SamplingParams, system: str | None, shown: Sequence[Part]) -> None:
    conversation = Conversation(partner, params, system, shown)
    async for line in user_lines():
        if not await conversation.take(line):
            return
