"""From the texts and token ids of a request to prompts: beside the event loop, for as long as the client is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from starlette.requests import Request

from atom_core.engine.inputs.validation import prompt_too_long
from atom_core.messages import Image
from atom_core.tokenization import TextThreads, TooManyTokensError
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError, unsupported
from atom_server.schemas.fields.model_request import PromptRequest
from atom_server.state import ServerState, server_state

# The most tokens of a text that is only counted, or cut, and need not fit the model's context.
MAX_TOKENS = 2**20


class PromptTokens(NamedTuple):
    """A tokenized prompt. `text` is what the client sent, where it sent text or wants it.

    `num_first_tokens` of a pair of texts are the first one's, where the model is to tell the two apart; else 0. Each of
    `images` has one token, in whose place the engine puts as many as the picture takes.
    """

    token_ids: list[int]
    text: str | None = None
    num_first_tokens: int = 0
    images: tuple[Image, ...] = ()


async def encode_texts(
    request: Request,
    texts: Sequence[str],
    *,
    add_special_tokens: bool,
    param: str = "prompt",
    has_to_fit: bool = True,
) -> list[list[int]]:
    """Token ids of each of several texts; the work ends when the client goes away.

    Args:
        has_to_fit: the first text that is too long for the model's context ends the work.

    Raises:
        APIError, InvalidRequestError: 400; there is no tokenizer, or a text is too long.
    """
    state = server_state(request)
    context = state.engine.info.max_model_len
    limit = most_characters(state, has_to_fit=has_to_fit)
    if limit is not None and (longest := max(map(len, texts), default=0)) > limit:
        message = f"the prompt has {longest} characters, which cannot fit the context of {context} tokens; send less"
        raise APIError(400, message, param=param, code="context_length_exceeded")
    most = state.engine.info.max_prompt_len
    most_tokens = most if has_to_fit else MAX_TOKENS
    encoding = text_threads(state).encode(texts, add_special_tokens=add_special_tokens, most_tokens=most_tokens)
    try:
        return await until_disconnect(request, encoding)
    except TooManyTokensError as error:
        if has_to_fit:
            raise prompt_too_long(error.num_tokens, context, param, most=most) from None
        message = f"the text has {error.num_tokens} tokens; at most {MAX_TOKENS} are counted or cut here: send less"
        raise APIError(400, message, param=param, code="context_length_exceeded") from None


async def decode_tokens(request: Request, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Text of token ids; APIError 400 without a tokenizer."""
    threads = text_threads(server_state(request))
    return await until_disconnect(request, threads.decode(token_ids, skip_special_tokens=skip_special_tokens))


async def encode_prompts(
    request: Request,
    body: PromptRequest,
    prompts: Sequence[str | list[int]],
    *,
    param: str = "prompt",
    max_tokens: int | None = None,
    with_text: bool = False,
) -> list[PromptTokens]:
    """Token ids of each of several prompts, cut as `body` says.

    Args:
        with_text: prompts of token ids get their text too, where there is a tokenizer.

    Raises:
        APIError, InvalidRequestError: 400; see `encode_texts`.
    """
    state = server_state(request)
    special, fits = body.add_special_tokens is not False, body.truncate_prompt_tokens is None
    lists = [prompt for prompt in prompts if not isinstance(prompt, str)]
    # Ids that are neither cut nor turned into text are checked by `Generation.submit`, which knows one name for them.
    if lists and (with_text or not fits or param != "prompt"):
        await until_disconnect(request, state.engine.check_token_ids(lists, name=param))
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(
        await encode_texts(request, texts, add_special_tokens=special, param=param, has_to_fit=fits) if texts else ()
    )
    info = state.engine.info
    tokenized = []
    for prompt in prompts:
        given = PromptTokens(next(encoded), prompt) if isinstance(prompt, str) else PromptTokens(prompt)
        kept = await cut_prompt(request, body, given, max_tokens)
        if len(kept.token_ids) > info.max_prompt_len:
            raise prompt_too_long(len(kept.token_ids), info.max_model_len, param, most=info.max_prompt_len)
        if with_text and kept.text is None and state.engine.texts is not None:
            kept = PromptTokens(kept.token_ids, await decode_tokens(request, kept.token_ids))
        tokenized.append(kept)
    return tokenized


async def cut_prompt(
    request: Request, body: PromptRequest, prompt: PromptTokens, max_tokens: int | None
) -> PromptTokens:
    """The prompt as far as `body` keeps it."""
    if prompt.images and body.truncate_prompt_tokens is not None:
        name = "truncate_prompt_tokens"
        raise unsupported(f"a prompt with pictures is not cut; leave {name!r} out", name)
    kept = body.cut(prompt.token_ids, server_state(request).engine.info.max_model_len, max_tokens)
    if len(kept) == len(prompt.token_ids):
        return prompt
    return PromptTokens(kept, None if prompt.text is None else await decode_tokens(request, kept))


def most_characters(state: ServerState, *, has_to_fit: bool) -> int | None:
    """The length above which a text cannot fit, however it is tokenized; None where that is not known."""
    for_each = text_threads(state).most_characters_per_token
    if for_each is None:
        return None
    return for_each * (state.engine.info.max_model_len if has_to_fit else MAX_TOKENS)


def text_threads(state: ServerState) -> TextThreads:
    """The threads that tokenize; APIError 400 where the server was started without a tokenizer."""
    _ = state.tokenizer
    return cast(TextThreads, state.engine.texts)
