"""`OutputFormat`: how one model writes what it thinks, says and calls, settled once from its chat template."""

from __future__ import annotations

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


@dataclass(frozen=True)
class OutputFormat:
    """What the parsers and the grammars of one server go by.

    Attributes:
        calls: name of the notation, or "harmony".
        reasoning: what begins and what ends the reasoning; None where nothing is told apart.
        kept_token_ids: special tokens that belong to these notations, so that their text must reach the parser.
        kept_tokens: their texts.
    """

    calls: str
    reasoning: tuple[str, str] | None
    kept_token_ids: tuple[int, ...] = ()
    kept_tokens: tuple[str, ...] = ()

    @classmethod
    def infer(
        cls, template: str, tokenizer: Tokenizer | None, *, calls: str = "auto", reasoning: str = "auto"
    ) -> OutputFormat:
        """From a chat template's source and the tokenizer's special tokens; names other than "auto" are taken."""
        calls = format_of(template) if calls == "auto" else calls
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

    @property
    def is_harmony(self) -> bool:
        """Whether everything is written in channels."""
        return self.calls == "harmony"

    @property
    def notation(self) -> CallNotation:
        """Of the calls, where those are not messages in a channel."""
        return NOTATIONS[self.calls]

    def is_thinking(self, prompt: str) -> bool:
        """Whether a prompt has begun the reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0].strip())

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
        calls = self._call_parser(schemas, as_json) if schemas else None
        if self.reasoning is None or not reads_reasoning:
            return calls
        begin, end = self.reasoning
        return ReasoningParser(begin, end, calls, is_open=self.is_thinking(prompt))

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
