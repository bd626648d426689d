"""llguidance: builds its automata as text arrives, knows every keyword that it takes, and counts fuel.

No pattern can take more than a set amount of work, neither when a grammar is checked nor in a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.constraints.grammar import GrammarError, json_value, kind_of, one_line
from atom_core.structured_output.constraints.structural_tag import format_of
from atom_core.structured_output.llguidance.lark import Split, json_of, lark_of
from atom_core.structured_output.llguidance.library_tokenizer import NUM_BYTES, make_tokenizer, tokenizer_of_bytes
from atom_core.structured_output.llguidance.short_parser import ShortParser, ShortVocabularies
from atom_core.structured_output.llguidance.slices import slices_of
from atom_core.structured_output.vocabulary import Vocabulary

# A state of the lexer takes 1 to 2 kB.
MAX_LEXER_STATES = 50_000
# Tokenizers with slices of their own. Making one stops all threads for a tenth of a second, so their number is limited.
MAX_SLICED = 8
# Where in a grammar, and its lines.
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_bytes = cache(tokenizer_of_bytes)
LIMITS = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


class LLGuidanceBackend:
    """Compiles with llguidance. Making one takes about a tenth of a second for 50,000 tokens.

    Args:
        vocabulary: of the model.
        eos_token_ids: tokens that end a sequence.
    """

    def __init__(self, vocabulary: Vocabulary, eos_token_ids: Sequence[int]) -> None:
        self._split = vocabulary.split
        self._short = ShortVocabularies(vocabulary, eos_token_ids)
        self._tokenizer = make_tokenizer(
            vocabulary.tokens, vocabulary.special_token_ids, eos_token_ids, vocabulary.encode
        )
        self._sliced: dict[tuple[str, ...], LLTokenizer] = {}

    def compile(self, params: StructuredOutputParams) -> Grammar:
        """Compile a constraint that passed `check_limits`; any thread may.

        Raises:
            GrammarError: the constraint is not sound, or not one that this backend knows.
        """
        grammar = grammar_of(params, self._split)
        short = self._short.for_constraint(kind_of(params), params.regex or grammar)
        tokenizer = self._tokenizer_with(slices_of(params)) if short is None else self._tokenizer
        start = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        if start.is_error():
            raise GrammarError(f"{kind_of(params)} is not valid: {_complaint(params, start.get_error())}")
        if short is None:
            return Grammar(lambda: LLGuidanceParser(start))
        same = LLMatcher(short.tokenizer, grammar, log_level=0, limits=LIMITS)
        return Grammar(lambda: ShortParser(LLGuidanceParser(start), LLGuidanceParser(same), short))

    def _tokenizer_with(self, slices: tuple[str, ...]) -> LLTokenizer:
        """The tokenizer with these slices before its own; without, where too many others were asked for before."""
        tokenizer = self._sliced.get(slices)
        if tokenizer is None:
            if not slices or len(self._sliced) >= MAX_SLICED:
                return self._tokenizer
            try:
                tokenizer = self._tokenizer.with_slices([*slices, *LLTokenizer.general_slices()])
            except RuntimeError:  # what looked like a class is none
                tokenizer = self._tokenizer
            self._sliced[slices] = tokenizer
        return tokenizer


class LLGuidanceParser:
    """See `Parser`. It begins where `start` stands, and leaves that as it is."""

    def __init__(self, start: LLMatcher) -> None:
        self._matcher = start.deep_copy()

    def fill(self, words: np.ndarray) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def accept(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def error(self) -> str | None:
        return self._matcher.get_error().splitlines()[0] if self._matcher.is_error() else None


def check(params: StructuredOutputParams) -> None:
    """Raise GrammarError unless `params` can be followed; needs no vocabulary."""
    grammar = grammar_of(params, lambda text: [text])
    is_bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=LIMITS)
    if is_bad and messages:
        raise GrammarError(f"{kind_of(params)} is not valid: {_complaint(params, messages[0])}")
    if kind_of(params) in ("json", "regex") and _matches_nothing(grammar):
        raise GrammarError(f"{kind_of(params)} is not valid: no text follows it")


def _complaint(params: StructuredOutputParams, message: str) -> str:
    """A message about the client's text: not about the grammar that it became, which the library shows it in."""
    if params.grammar is None:
        message = _PLACE.sub("", _EXCERPT.sub("", message))
    return one_line(message)


def _matches_nothing(grammar: str) -> bool:
    """Whether a text cannot even begin."""
    start = LLMatcher(_bytes(), grammar, log_level=0, limits=LIMITS)
    words = np.zeros(NUM_BYTES // 32 + 1, dtype=np.int32)
    start.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    return start.is_error() and start.get_error().startswith("NoExtensionBias")


def grammar_of(params: StructuredOutputParams, split: Split) -> str:
    """A constraint in llguidance's notation.

    Args:
        params: passed `check_limits`.
        split: parts texts at special tokens.

    Raises:
        GrammarError: it cannot be put into a grammar. That the grammar itself is sound shows when it is compiled.
    """
    kind = kind_of(params)
    value = getattr(params, kind)
    try:
        match kind:
            case "json":
                return LLMatcher.grammar_from_json_schema(json.dumps(json_of(json_value(kind, value))))
            case "json_object":
                return LLMatcher.grammar_from_json_schema(json.dumps(json_of({"type": "object"})))
            case "regex":
                return LLMatcher.grammar_from_regex(value)
            case "choice":
                return llguidance.grammar_from("choice", json.dumps(list(value)))
            case "grammar":
                return llguidance.grammar_from("grammar", value)
            case _:
                format_ = format_of(json_value(kind, value))
                if isinstance(format_, dict):
                    raise GrammarError("structural_tag has formats that only xgrammar knows")
                return lark_of(format_, split)
    except GrammarError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise GrammarError(f"{kind}: {error}") from None
