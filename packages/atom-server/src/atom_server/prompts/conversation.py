"""From the messages of a conversation to its prompt, through the chat template: beside the event loop, too."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from atom_core import InvalidRequestError
from atom_core.engine.inputs.placed_images import place_images
from atom_core.tokenization.text_threads import PIECE_CHARACTERS
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.prompts.seen_media import SeenMedia
from atom_server.prompts.texts import MAX_TOKENS, PromptTokens, encode_texts, most_characters, text_threads
from atom_server.schemas.fields.content import Shown, text_of
from atom_server.state import ServerState, server_state

# The limit of what a template writes where there is no other.
_MAX_CHARACTERS = 2**26


async def encode_messages(
    request: Request,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    template_variables: Mapping[str, Any] | None = None,
    add_special_tokens: bool,
    has_to_fit: bool,
) -> PromptTokens:
    """Token ids and pictures of a conversation; the work ends when the client goes away.

    Args:
        has_to_fit: a prompt that is too long for the model's context is refused here.

    Raises:
        APIError, InvalidRequestError: 400; there is no template, it cannot render these messages, the model sees no
            pictures, or see `encode_texts` and `PictureDecoder`.
    """
    state = server_state(request)
    template, threads = state.template, text_threads(state)
    if template is None:
        message = "this model has no chat template: use /v1/completions, or start the server with --chat-template FILE"
        raise APIError(400, message, param="messages", code="no_chat_template")
    shown, media = Shown.of(messages), SeenMedia(state.engine, state.model_name, state.pictures)
    media.check(shown)
    limit = most_characters(state, has_to_fit=has_to_fit) or _MAX_CHARACTERS
    is_left = threading.Event()

    def render() -> str:
        return template.render(
            state.history_style.applied(shown.messages),
            template_variables,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            most_characters=limit,
            is_wanted=lambda: not is_left.is_set(),
        )

    try:
        text = await until_disconnect(request, threads.run(render, is_long=_is_long(request, shown)))
    finally:
        is_left.set()
    most = state.engine.info.max_prompt_len if has_to_fit else MAX_TOKENS
    placed = await until_disconnect(request, media.place(text, shown, num_tokens=most))
    [token_ids] = await encode_texts(
        request, [placed.text], add_special_tokens=add_special_tokens, param="messages", has_to_fit=has_to_fit
    )
    images = await until_disconnect(request, media.images(shown.urls, len(token_ids), num_tokens=most))
    return PromptTokens(token_ids, placed.text, images=tuple(placed.among(images)))


def tokens_with_pictures(state: ServerState, prompt: PromptTokens) -> list[int]:
    """The tokens of a prompt as the engine would run it: with all those of its pictures.

    Raises:
        APIError: 400; the text has tokens that stand for pictures.
    """
    try:
        return place_images(prompt.token_ids, prompt.images, state.engine.info.images).token_ids
    except InvalidRequestError as error:
        raise APIError(400, error.message, param="messages", code=error.code) from None


def _is_long(request: Request, shown: Shown) -> bool:
    """Whether rendering may take long. The body's size tells, or that of `shown`, which may hold earlier turns."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() and len(declared) < 20 else PIECE_CHARACTERS + 1
    size -= sum(map(len, (*shown.urls, *shown.videos)))
    return max(size, sum(len(text_of(message.get("content") or "")) for message in shown.messages)) > PIECE_CHARACTERS
