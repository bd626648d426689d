"""xgrammar: compiles a grammar against the whole vocabulary first, and looks masks up afterwards.

It brings torch and transformers along and takes half a second to import: imported with the engine's first constraint.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xgrammar

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.bits import one_token
from atom_core.structured_output.constraints.grammar import GrammarError, json_value, kind_of, one_line
from atom_core.structured_output.constraints.structural_tag import format_of
from atom_core.structured_output.vocabulary import Vocabulary
from atom_core.structured_output.xgrammar.tags import xgrammar_format

# Characters of text without a choice that are taken into tokens at once.
LONGEST_RUN = 2_000
# No text has this byte: a token that begins with it is met as a token only.
NO_TEXT = b"\xff"


class XGrammarBackend:
    """Compiles with xgrammar.

    Args:
        vocabulary: the model's vocabulary.
        eos_token_ids: tokens that end a sequence.
        num_threads: threads of one compilation.
    """

    def __init__(self, vocabulary: Vocabulary, eos_token_ids: Sequence[int], num_threads: int = 1) -> None:
        special = set(vocabulary.special_token_ids)
        tokens = [NO_TEXT + text if i in special and text else text for i, text in enumerate(vocabulary.tokens)]
        self._split, self._encode = vocabulary.split, vocabulary.encode
        self._compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(
                tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=list(eos_token_ids)
            ),
            max_threads=num_threads,
            # Its memory takes rules for one another that differ in their special tokens; `GrammarCompiler` has its own.
            cache_enabled=False,
        )

    def compile(self, params: StructuredOutputParams) -> Grammar:
        """As `LLGuidanceBackend.compile`."""
        kind = kind_of(params)
        try:
            compiled = self._compile(kind, getattr(params, kind))
            num_bytes = int(compiled.memory_size_bytes)
            return Grammar(lambda: XGrammarParser(xgrammar.GrammarMatcher(compiled), self._encode), lambda: num_bytes)
        except GrammarError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:  # the library's errors are all of these
            raise GrammarError(f"{kind} is not valid: {one_line(_complaint(str(error)))}") from None

    def _compile(self, kind: str, value: Any) -> xgrammar.CompiledGrammar:
        compiler = self._compiler
        match kind:
            case "json":
                return compiler.compile_json_schema(
                    json.dumps(json_value(kind, value)), any_whitespace=False, strict_mode=False
                )
            case "json_object":
                return compiler.compile_json_schema('{"type": "object"}', any_whitespace=False, strict_mode=False)
            case "regex":
                return compiler.compile_regex(value)
            case "choice":
                texts = [{"type": "const_string", "value": text} for text in value]
                return compiler.compile_structural_tag(_tag({"type": "or", "elements": texts}))
            case "grammar":
                return compiler.compile_grammar(value) if "::=" in value else compiler.compile_lark(value)
            case _:
                format_ = format_of(json_value(kind, value))
                written = format_ if isinstance(format_, dict) else xgrammar_format(format_, self._split)
                return compiler.compile_structural_tag(_tag(written))


class XGrammarParser:
    """See `Parser`. Text that can only be one is written in the tokenizer's own tokens, as llguidance does it.

    The library would let the model spell it in any pieces: more tokens, some of which models have hardly ever seen.
    """

    def __init__(self, matcher: xgrammar.GrammarMatcher, encode: Callable[[str], list[int]]) -> None:
        self._matcher, self._encode = matcher, encode
        self._coming: deque[int] = deque()
        self.error: str | None = None

    def fill(self, words: np.ndarray) -> None:
        try:
            if not self._coming:
                self._look_ahead()
            if self._coming:
                words[:] = one_token(self._coming[0], len(words))
            else:
                self._matcher.fill_next_token_bitmask(words[None])
        except RuntimeError as error:
            self.error = one_line(str(error))

    def accept(self, token_id: int) -> None:
        if self._coming and self._coming.popleft() != token_id:
            self._coming.clear()
        if not self._matcher.accept_token(token_id) and self.error is None:
            self.error = f"token {token_id} does not follow it"

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_completed()

    def _look_ahead(self) -> None:
        """Find the tokens of text without a choice."""
        try:
            text = self._matcher.find_jump_forward_string()[:LONGEST_RUN]
        except UnicodeDecodeError:  # it begins inside a character
            return
        if len(text) > 1:
            # The last token may be the beginning of a longer one, with text that comes after.
            self._coming.extend(self._encode(text)[:-1])


def _complaint(message: str) -> str:
    """Without the time of day, and without the place in the library's sources."""
    message = message.partition("] ")[2] or message
    return message.rpartition(" is false: ")[2] if "Check failed" in message else message


def _tag(format_: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": format_}
