"""A message that is one text or one picture, for models that have an encoder for each and no chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.prompts.seen_media import SeenMedia
from atom_server.prompts.texts import PromptTokens, encode_texts
from atom_server.schemas.fields.content import Shown, text_of
from atom_server.state import server_state


async def encode_text_or_picture(
    request: Request, messages: Sequence[Mapping[str, Any]], *, has_to_fit: bool
) -> PromptTokens:
    """The prompt of a message.

    Raises:
        APIError, InvalidRequestError: 400; there are several messages or pictures, or a text beside a picture; or see
            `encode_texts` and `PictureDecoder`.
    """
    state = server_state(request)
    shown, media = Shown.of(messages), SeenMedia(state.engine, state.model_name, state.pictures)
    media.check(shown)
    text = "".join(text_of(message.get("content") or "") for message in shown.messages)
    if len(messages) != 1 or len(shown.urls) > 1 or bool(text) == bool(shown.urls):
        message = "this model makes a vector of a text or of a picture: send one message with one of them"
        raise APIError(400, message, param="messages")
    spec = state.engine.info.images
    if spec is not None and shown.urls:
        images = await until_disconnect(request, media.images(shown.urls, 1, num_tokens=1))
        return PromptTokens([spec.image_token_id], images=tuple(images))
    [token_ids] = await encode_texts(request, [text], add_special_tokens=True, param="messages", has_to_fit=has_to_fit)
    return PromptTokens(token_ids, text)
