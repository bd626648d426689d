"""How a query and a document become one prompt: by the tokenizer's own way with pairs, or by a template."""

from __future__ import annotations

from starlette.requests import Request

from atom_core.engine.inputs.checked_prompts import beside_the_loop
from atom_core.engine.inputs.validation import prompt_too_long
from atom_core.tokenization import TooManyTokensError
from atom_server.connections.disconnect import until_disconnect
from atom_server.prompts.texts import PromptTokens, encode_texts, text_threads
from atom_server.schemas.scores import PairsRequest
from atom_server.scoring.lengths import check_lengths
from atom_server.state import server_state

# As the card of Qwen/Qwen3-Reranker-0.6B has them, of which each part is tokenized by itself.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


async def lay_out(request: Request, body: PairsRequest) -> list[PromptTokens]:
    """A prompt for each pair of a request.

    Raises:
        APIError, InvalidRequestError: 400; there is no tokenizer, or a pair is too long.
    """
    if server_state(request).engine.judging.has_template:
        return await _by_template(request, body)
    return await _by_tokenizer(request, body)


async def _by_tokenizer(request: Request, body: PairsRequest) -> list[PromptTokens]:
    state, param = server_state(request), body.name_of("prompt") or "prompt"
    info, has_types = state.engine.info, state.engine.judging.has_token_types
    encoding = text_threads(state).encode_pairs(body.pairs(), most_tokens=info.max_prompt_len)
    try:
        encoded = await until_disconnect(request, encoding)
    except TooManyTokensError as error:
        raise prompt_too_long(error.num_tokens, info.max_model_len, param, most=info.max_prompt_len) from None
    check_lengths(state, [len(token_ids) for token_ids, _ in encoded], param)
    return [PromptTokens(token_ids, None, num_first if has_types else 0) for token_ids, num_first in encoded]


async def _by_template(request: Request, body: PairsRequest) -> list[PromptTokens]:
    param, instruction = body.name_of("prompt") or "prompt", body.instruction or _INSTRUCTION
    texts = [f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}" for query, document in body.pairs()]
    before, after = await encode_texts(request, [_BEFORE, _AFTER], add_special_tokens=False, param=param)
    encoded = await encode_texts(request, texts, add_special_tokens=True, param=param)
    lengths = [len(before) + len(token_ids) + len(after) for token_ids in encoded]
    check_lengths(server_state(request), lengths, param)

    def join() -> list[PromptTokens]:
        return [PromptTokens(before + token_ids + after) for token_ids in encoded]

    return await beside_the_loop(join, num_tokens=sum(lengths))
