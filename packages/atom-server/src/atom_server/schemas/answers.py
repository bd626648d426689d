"""What the server answers, as msgspec structs: encoded once for each token, so cheap ones.

Structs of single tokens are not tracked by the garbage collector: it would go through hundreds of thousands at once.

Fields that are UNSET are left out. `finish_reason` is OpenAI's: "stop", "length" or "tool_calls".
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from atom_core.messages import KVTransferParams

Finish = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct):
    """How many prompt tokens the prefix cache had."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """How many generated tokens were reasoning; how many guesses of speculation were generated tokens, and were not."""

    reasoning_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts, and seconds: to the first token, for each later one, in all."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    ttft_s: float
    tpot_s: float
    latency_s: float


class TextLogprobs(msgspec.Struct):
    """Parallel lists over the tokens of a text; the first token of a prompt has None."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One sample of a text completion, or the news of it in a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[Any] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextCompletion(msgspec.Struct):
    """A text completion, or a chunk of one."""

    id: str
    created: int
    model: str
    choices: list[TextChoice] | list[msgspec.Raw]
    object: str = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    kv_transfer_params: KVTransferParams | UnsetType = UNSET


class TopLogprob(msgspec.Struct, gc=False):
    """A likely token."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(TopLogprob, gc=False):
    """The chosen token and the likely ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry for each token of the content."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    """A function's name and its arguments as JSON text, or what is new of that."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call; `index` numbers the calls in a stream, whose first news alone have an id."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall


class Message(msgspec.Struct):
    """The assistant's turn. The reasoning goes by both of its usual names."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One sample of a chat completion."""

    index: int
    message: Message
    finish_reason: Finish
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[Any] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """A whole chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice] | list[msgspec.Raw]
    usage: Usage
    object: str = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: KVTransferParams | UnsetType = UNSET


class Delta(msgspec.Struct):
    """What is new of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """The news of one sample."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One event of a streamed chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
