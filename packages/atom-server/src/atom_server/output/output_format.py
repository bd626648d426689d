"""`OutputFormat`: how one model writes what it thinks, says and calls, settled once from its chat template."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_core import Tokenizer
from atom_server.output import harmony
from atom_server.output.call_parser import CallParser
from atom_server.output.harmony import HarmonyParser
from atom_server.output.notation import NOTATIONS, CallNotation, format_of
from atom_server.output.parts import Parser
from atom_server.output.plain_json import PYTHON_TAG, JsonParser
from atom_server.output.reasoning import MARKERS, ReasoningParser
from atom_server.output.response_template import (
    ResponseTemplate,
    ResponseTemplateError,
    TemplateParser,
    answer_marks,
    notation_of,
    reasoning_marks,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutputFormat:
    """What the parsers and the grammars of one server go by.

    Attributes:
        calls: name of the notation, or "harmony".
        reasoning: what begins and what ends the reasoning; None where nothing is told apart.
        kept_token_ids: special tokens that belong to these notations, so that their text must reach the parser.
        kept_tokens: their texts.
        template: what the checkpoint declares itself.
        template_notation: how calls are written for it; None where that is not known.
        answer: what stands around an answer; None where that is not known.
    """

    calls: str
    reasoning: tuple[str, str] | None
    kept_token_ids: tuple[int, ...] = ()
    kept_tokens: tuple[str, ...] = ()
    template: ResponseTemplate | None = None
    template_notation: CallNotation | None = None
    answer: tuple[str, str] | None = ("", "")

    @classmethod
    def infer(
        cls,
        template: str,
        tokenizer: Tokenizer | None,
        *,
        calls: str = "auto",
        reasoning: str = "auto",
        declared: Any = None,
    ) -> OutputFormat:
        """From a chat template's source and the tokenizer's special tokens; names other than "auto" win.

        Args:
            declared: the checkpoint's response template. It goes before what the chat template shows, but not before
                those names, and not for GPT-OSS, whose messages it cannot enforce.
        """
        is_auto = (calls, reasoning) == ("auto", "auto")
        calls = format_of(template) if calls == "auto" else calls
        if declared is not None and is_auto and calls != "harmony":
            try:
                return cls._declared(ResponseTemplate.load(declared), calls, tokenizer)
            except ResponseTemplateError as error:
                logger.warning("the response template of the checkpoint is left aside: %s", error)
        if calls == "harmony":
            marks: tuple[str, ...] = harmony.MARKS
            thinking = harmony.THINKING
        else:
            if reasoning == "auto":
                reasoning = next((name for name, (_, end) in MARKERS.items() if end in template), "none")
            thinking = MARKERS.get(reasoning)
            marks = (*NOTATIONS[calls].marks, *(thinking or ()), *((PYTHON_TAG,) if calls == "json" else ()))
        kept = _special_tokens_in(marks, tokenizer)
        return cls(calls, thinking, tuple(kept), tuple(kept.values()))

    @classmethod
    def _declared(cls, template: ResponseTemplate, family: str, tokenizer: Tokenizer | None) -> OutputFormat:
        """`family`: the notation that the chat template shows."""
        notation, reasoning = notation_of(template, NOTATIONS[family]), reasoning_marks(template)
        texts = (*template.texts, *(notation or NOTATIONS[family]).marks, *(reasoning or ()))
        kept = _special_tokens_in(texts, tokenizer)
        return cls(family, reasoning, tuple(kept), tuple(kept.values()), template, notation, answer_marks(template))

    @property
    def is_harmony(self) -> bool:
        """Whether everything is written in channels."""
        return self.calls == "harmony"

    @property
    def notation(self) -> CallNotation:
        """How calls are written, if they are not messages in a channel."""
        if self.template is None or self.template.field_of("calls") is None:
            return NOTATIONS[self.calls]
        return self.template_notation or NOTATIONS["json"]

    def is_thinking(self, prompt: str) -> bool:
        """Whether a prompt has begun the reasoning. It always has where no mark begins it."""
        if self.reasoning is None or self.has_thought(prompt):
            return False
        return prompt.rstrip().endswith(self.reasoning[0].strip())

    def has_thought(self, prompt: str) -> bool:
        """Whether a prompt has ended the reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[1].strip())

    def parser(self, schemas: Mapping[str, Any], prompt: str, *, reads_reasoning: bool, as_json: bool) -> Parser | None:
        """Reads one choice's text; None where all of it is content.

        Args:
            schemas: parameters of each function that may be called.
            prompt: the reasoning may have begun, or ended, at its end.
            as_json: calls are a list of JSON objects, whatever the model's notation.
        """
        if self.is_harmony and not as_json:
            return HarmonyParser() if reads_reasoning else None
        if self._is_for_template(bool(schemas), reads_reasoning, as_json) and self.template is not None:
            return TemplateParser(self.template if schemas else self.template.without_calls(), prompt, schemas)
        calls = self._call_parser(schemas, as_json) if schemas else None
        if self.reasoning is None or not reads_reasoning:
            return calls
        begin, end = self.reasoning
        return ReasoningParser(begin, end, calls, is_open=self.is_thinking(prompt))

    def _is_for_template(self, has_functions: bool, reads_reasoning: bool, as_json: bool) -> bool:
        """A template that knows no calls says nothing of a chat with functions."""
        if self.template is None or as_json or not reads_reasoning:
            return False
        return not has_functions or self.template.field_of("calls") is not None

    def _call_parser(self, schemas: Mapping[str, Any], as_json: bool) -> Parser:
        if as_json or not self.notation.trigger:
            return JsonParser(schemas)
        return CallParser(self.notation, schemas, self.kept_tokens)


def _special_tokens_in(marks: tuple[str, ...], tokenizer: Tokenizer | None) -> dict[int, str]:
    """Id -> text of the special tokens that `marks` hold."""
    if tokenizer is None:
        return {}
    texts = {token_id: tokenizer.id_to_token(token_id) or "" for token_id in sorted(tokenizer.special_token_ids)}
    return {token_id: text for token_id, text in texts.items() if text and any(text in mark for mark in marks)}
