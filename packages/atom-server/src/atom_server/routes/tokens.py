"""``POST /tokenize``, ``POST /detokenize``, ``GET /tokenizer_info``: the model's own tokenizer for clients."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_core.tokenization.text_threads import PIECE_TOKENS
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.prompts.conversation import encode_messages, tokens_with_pictures
from atom_server.prompts.texts import decode_tokens, encode_texts, text_threads
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from atom_server.state import server_state

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", response_class=Response, openapi_extra=described(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Token ids of a text or a conversation, which may be longer than the model's context."""
    state, body, _ = await accepted(request, TokenizeRequest, generates=False)
    body.check()
    threads = text_threads(state)
    if body.prompt is not None:
        special = True if body.add_special_tokens is None else body.add_special_tokens
        [token_ids] = await encode_texts(request, [body.prompt], add_special_tokens=special, has_to_fit=False)
    else:
        messages = [message.model_dump(exclude_unset=True) for message in body.messages or ()]
        prompt = await encode_messages(
            request,
            messages,
            add_generation_prompt=body.add_generation_prompt,
            add_special_tokens=bool(body.add_special_tokens),
            has_to_fit=False,
        )
        token_ids = tokens_with_pictures(state, prompt)

    def answer() -> bytes:
        id_to_text = state.tokenizer.id_to_text
        texts = [id_to_text(token_id) for token_id in token_ids] if body.return_token_strs else None
        context = state.engine.info.max_model_len
        return msgspec.json.encode(
            {"count": len(token_ids), "max_model_len": context, "tokens": token_ids, "token_strs": texts}
        )

    work = threads.run(answer, is_long=len(token_ids) > PIECE_TOKENS)
    return Response(await until_disconnect(request, work), media_type="application/json")


@router.post("/detokenize", response_class=Response, openapi_extra=described(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """Text of token ids: no more of them than the model's context has."""
    state, body, _ = await accepted(request, DetokenizeRequest, generates=False)
    info = state.engine.info
    if len(body.tokens) > info.max_model_len:
        message = f"there are {len(body.tokens)} tokens; no text of this model has more than {info.max_model_len}"
        raise APIError(400, message, param="tokens", code="context_length_exceeded")
    if max(body.tokens, default=0) >= info.vocab_size:
        message = f"token id {max(body.tokens)} is not below the vocabulary's size {info.vocab_size}"
        raise APIError(400, message, param="tokens")
    text = await decode_tokens(request, body.tokens, skip_special_tokens=body.skip_special_tokens)
    return Response(msgspec.json.encode({"prompt": text}), media_type="application/json")


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """Special tokens and chat template."""
    state = server_state(request)
    tokenizer = state.tokenizer
    roles = ("bos_token", "eos_token", "pad_token", "unk_token")
    return {
        **{role: tokenizer.special_tokens.get(role) for role in roles},
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_class": tokenizer.name or None,
        "chat_template": state.template.source if state.template else None,
    }
