"""`ReplyPlan`: how the reply to a chat is generated and read, the same for every route that chats."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from atom_core import SamplingParams, ThinkingBudget
from atom_server.generation.reply_reader import CallIds, ReplyReader, random_call_id
from atom_server.generation.tool_calling import (
    check_tools,
    is_written_as_json,
    makes_several,
    reply_constraint,
    schemas_of,
)
from atom_server.output.notation import CallNotation
from atom_server.output.output_format import OutputFormat
from atom_server.prompts.conversation import encode_messages
from atom_server.prompts.texts import PromptTokens, cut_prompt
from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.state import ServerState, server_state

# GPT-OSS knows low, medium and high.
_HARMONY_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ReplyPlan:
    """How the engine generates a reply, and what reads it.

    Attributes:
        params: sampling parameters with the grammar of the reply, and with the special tokens that its reader needs.
        make_reader: a reader for each choice.
    """

    params: SamplingParams
    make_reader: Callable[[], ReplyReader]


async def encode_chat(request: Request, body: ChatCompletionRequest, *, has_to_fit: bool = True) -> PromptTokens:
    """The prompt of a chat.

    Args:
        has_to_fit: a prompt that is too long for the model's context is refused, unless `body` has it cut.

    Raises:
        APIError, InvalidRequestError: 400; there is no template, it cannot render these messages, the tools are not
            allowed, or the prompt is too long.
    """
    check_tools(body)
    prompt = await encode_messages(
        request,
        body.template_messages(),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_variables=_template_variables(server_state(request), body),
        add_special_tokens=bool(body.add_special_tokens),
        has_to_fit=has_to_fit and body.truncate_prompt_tokens is None,
    )
    return await cut_prompt(request, body, prompt, body.most_tokens)


def _template_variables(state: ServerState, body: ChatCompletionRequest) -> dict[str, Any]:
    variables = body.template_variables()
    effort = body.reasoning_effort
    if effort in _HARMONY_EFFORTS and state.output_format is not None and state.output_format.is_harmony:
        variables["reasoning_effort"] = _HARMONY_EFFORTS[effort]
    return variables


def plan_reply(state: ServerState, body: ChatCompletionRequest, prompt: PromptTokens) -> ReplyPlan:
    """How to answer a request whose tools were checked and whose prompt is this."""
    output = state.output_format
    params = body.chat_sampling_params()
    if output is None:
        return ReplyPlan(params, ReplyReader)
    text = prompt.text or ""
    constraint = reply_constraint(body, output, text)
    # Where the grammar cannot come after thinking, it is taken alone, and nothing is read as reasoning.
    asked = body.constraint()
    reads_reasoning = asked is None or constraint != asked
    # A response template sees in the prompt what is continued.
    reads_reasoning = reads_reasoning and (not body.continue_final_message or output.template is not None)
    schemas, as_json = schemas_of(body), is_written_as_json(body, output)

    strays = output.kept_tokens if params.skip_special_tokens else ()

    def make_reader() -> ReplyReader:
        parser = output.parser(schemas, text, reads_reasoning=reads_reasoning, as_json=as_json)
        ids = random_call_id if output.is_harmony else _call_ids(output.notation, body)
        return ReplyReader(
            parser, several=makes_several(body), keeps_reasoning=body.include_reasoning, call_ids=ids, strays=strays
        )

    has_parser = output.parser(schemas, text, reads_reasoning=reads_reasoning, as_json=as_json) is not None
    kept = list(output.kept_token_ids) if has_parser and params.skip_special_tokens else None
    budget = _thinking_budget(body, output, text) if reads_reasoning else None
    params = msgspec.structs.replace(
        params, structured_outputs=constraint, kept_special_token_ids=kept or None, thinking_budget=budget
    )
    return ReplyPlan(params, make_reader)


def _thinking_budget(body: ChatCompletionRequest, output: OutputFormat, prompt: str) -> ThinkingBudget | None:
    if body.thinking_token_budget is None or output.reasoning is None:
        return None
    begin, end = output.reasoning
    # Reasoning that no mark begins is always open, and its beginning is never looked for.
    return ThinkingBudget(body.thinking_token_budget, begin or end, end, is_open=output.is_thinking(prompt))


def _call_ids(notation: CallNotation, body: ChatCompletionRequest) -> CallIds:
    """Ids that the template can show the model again."""
    if notation.is_numbered:
        earlier = sum(len((message.model_extra or {}).get("tool_calls") or ()) for message in body.messages)
        return lambda name, number: f"functions.{name}:{earlier + number}"
    if notation.id_length:
        return lambda name, number: "".join(random.choices(_LETTERS, k=notation.id_length))
    return random_call_id
