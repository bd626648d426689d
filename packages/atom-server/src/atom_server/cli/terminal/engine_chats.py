"""Conversations become prompts of an engine that a command started."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from atom_core import AsyncEngine
from atom_core.engine.inputs.checked_prompts import CheckedPrompts
from atom_server.cli.terminal.engine_text import tokenizer_of
from atom_server.errors import APIError
from atom_server.options import ServerOptions
from atom_server.pictures.decoder import PictureDecoder
from atom_server.prompts.chat_template import ChatTemplate
from atom_server.prompts.seen_media import SeenMedia
from atom_server.schemas.fields.content import Shown
from atom_server.startup import load_template


class EngineChats:
    """Prompts of conversations with one engine; made by `chats_of`."""

    def __init__(self, engine: AsyncEngine, template: ChatTemplate, pictures: PictureDecoder | None) -> None:
        self._engine, self._template = engine, template
        self._media = SeenMedia(engine, engine.info.model, pictures)

    async def prompt(self, messages: Sequence[dict[str, Any]]) -> CheckedPrompts:
        """The prompt of a conversation; contents may have pictures and videos, as those of chat completions.

        Raises:
            APIError, InvalidRequestError: it has none, or a picture or a video cannot be taken.
        """
        shown, most = Shown.of(messages), self._engine.info.max_prompt_len
        self._media.check(shown)
        text = self._template.render(shown.messages)
        placed = await self._media.place(text, shown, num_tokens=most)
        token_ids = tokenizer_of(self._engine).encode(placed.text, add_special_tokens=False)
        images = await self._media.images(shown.urls, len(token_ids), num_tokens=most)
        return await self._engine.check_prompts([token_ids], images=[placed.among(images)])


@contextlib.contextmanager
def chats_of(engine: AsyncEngine, options: ServerOptions | None = None) -> Generator[EngineChats, None, None]:
    """Conversations with `engine`, whose pictures are decoded as `options` say.

    Raises:
        APIError: the model has no chat template.
        ConfigError: as `PictureDecoder.of`.
    """
    template = load_template(engine.tokenizer, None)
    if template is None:
        raise APIError(400, f"the model {engine.info.model} has no chat template", code="no_chat_template")
    pictures = PictureDecoder.of(engine.info, options or ServerOptions())
    try:
        yield EngineChats(engine, template, pictures)
    finally:
        if pictures is not None:
            pictures.close()
