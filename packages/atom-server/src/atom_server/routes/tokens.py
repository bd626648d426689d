"""``POST /tokenize``, ``POST /detokenize``, ``GET /tokenizer_info``: the model's own tokenizer for clients."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from atom_server.body import read_request
from atom_server.errors import APIError
from atom_server.prompts import encode_messages, encode_text
from atom_server.routes.openapi import described
from atom_server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from atom_server.state import server_state

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=described(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """Token ids of a text or a conversation."""
    state = server_state(request)
    body, _ = await read_request(request, TokenizeRequest, state.options.max_body_bytes)
    state.check_model(body.model)
    body.check()
    if body.prompt is not None:
        special = True if body.add_special_tokens is None else body.add_special_tokens
        token_ids = await encode_text(state, body.prompt, add_special_tokens=special)
    else:
        messages = [message.model_dump(exclude_unset=True) for message in body.messages or ()]
        prompt = await encode_messages(
            state,
            messages,
            add_generation_prompt=body.add_generation_prompt,
            add_special_tokens=bool(body.add_special_tokens),
        )
        token_ids = prompt.token_ids
    tokenizer = state.tokenizer
    return {
        "count": len(token_ids),
        "max_model_len": state.engine.info.max_model_len,
        "tokens": token_ids,
        "token_strs": [tokenizer.id_to_text(token_id) for token_id in token_ids] if body.return_token_strs else None,
    }


@router.post("/detokenize", openapi_extra=described(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, Any]:
    """Text of token ids."""
    state = server_state(request)
    body, _ = await read_request(request, DetokenizeRequest, state.options.max_body_bytes)
    state.check_model(body.model)
    size = state.engine.info.vocab_size
    unknown = next((token_id for token_id in body.tokens if token_id >= size), None)
    if unknown is not None:
        raise APIError(400, f"token id {unknown} is not below the vocabulary's size {size}", param="tokens")
    text = await asyncio.to_thread(state.tokenizer.decode, body.tokens, body.skip_special_tokens)
    return {"prompt": text}


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
