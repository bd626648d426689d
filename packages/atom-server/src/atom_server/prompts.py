"""From what a request gives (text, token ids, messages) to token ids, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from atom_server.errors import APIError
from atom_server.schemas.model_request import PromptRequest
from atom_server.state import ServerState

# Up to here tokenizing takes well under a millisecond; longer texts go to a thread.
_INLINE_CHARACTERS = 4096
# A token of most vocabularies spells at most this many characters (runs of spaces are the longest).
_LONGEST_TOKEN = 256


class PromptTokens(NamedTuple):
    """A tokenized prompt. `text` is what the client sent, where it sent text."""

    token_ids: list[int]
    text: str | None = None


async def encode_text(
    state: ServerState, text: str, *, add_special_tokens: bool = True, param: str = "prompt"
) -> list[int]:
    """Token ids of `text`.

    Raises:
        APIError: 400 for a text so long that no tokenizing could make it fit.
    """
    tokenizer = state.tokenizer
    most = state.engine.info.max_model_len
    if len(text) > most * _LONGEST_TOKEN:
        message = f"the prompt has {len(text)} characters, which cannot fit the context of {most} tokens; send less"
        raise APIError(400, message, param=param, code="context_length_exceeded")
    if len(text) <= _INLINE_CHARACTERS:
        return tokenizer.encode(text, add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)


async def encode_prompts(
    state: ServerState,
    body: PromptRequest,
    prompts: Sequence[str | list[int]],
    *,
    param: str = "prompt",
    max_tokens: int | None = None,
) -> list[PromptTokens]:
    """Token ids of each of several prompts, cut as `body` says."""
    special = body.add_special_tokens is not False
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            token_ids = await encode_text(state, prompt, add_special_tokens=special, param=param)
            encoded.append(cut_prompt(state, body, PromptTokens(token_ids, prompt), max_tokens))
        else:
            encoded.append(cut_prompt(state, body, PromptTokens(prompt), max_tokens))
    return encoded


def cut_prompt(state: ServerState, body: PromptRequest, prompt: PromptTokens, max_tokens: int | None) -> PromptTokens:
    """The prompt as far as `body` keeps it."""
    kept = body.cut(prompt.token_ids, state.engine.info.max_model_len, max_tokens)
    if len(kept) == len(prompt.token_ids):
        return prompt
    return PromptTokens(kept, None if prompt.text is None else state.tokenizer.decode(kept))


async def encode_messages(
    state: ServerState,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_variables: Mapping[str, Any] | None = None,
    add_special_tokens: bool = False,
) -> PromptTokens:
    """Token ids of a conversation, through the chat template.

    Raises:
        APIError: 400 where there is no template, or it cannot render these messages.
    """
    _ = state.tokenizer
    if state.template is None:
        message = "this model has no chat template: use /v1/completions, or start the server with --chat-template FILE"
        raise APIError(400, message, param="messages", code="no_chat_template")
    text = await asyncio.to_thread(
        state.template.render,
        state.history_style.applied(messages),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        **(template_variables or {}),
    )
    token_ids = await encode_text(state, text, add_special_tokens=add_special_tokens, param="messages")
    return PromptTokens(token_ids, text)
