"""llguidance: builds its automata as text arrives, knows every keyword that it takes, and counts fuel.

No pattern can take more than a set amount of work, neither when a grammar is checked nor in a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.constraints.grammar import GrammarError, json_value, kind_of, one_line
from atom_core.structured_output.constraints.structural_tag import format_of
from atom_core.structured_output.llguidance.lark import Split, json_of, lark_of
from atom_core.structured_output.llguidance.library_tokenizer import make_tokenizer
from atom_core.structured_output.llguidance.short_parser import ShortParser, ShortVocabularies
from atom_core.structured_output.llguidance.slices import slices_of
from atom_core.structured_output.llguidance.trial import why_it_cannot_be_followed
from atom_core.structured_output.vocabulary import Vocabulary

# A state of the lexer takes 1 to 2 kB: no grammar comes to hold more than 40 MB.
MAX_LEXER_STATES = 20_000
STATE_BYTES = 2048
# Expressions that patterns are taken apart into, while a text follows them too. Ten times this is seconds for a mask.
MAX_LEXER_FUEL = 100_000
# What a compiled grammar was measured to hold: for each of its characters, and for each token that a text took in it.
CHARACTER_BYTES = 150
TOKEN_BYTES = 4096
LEAST_BYTES = 64 << 10
# Tokenizers with slices of their own. Making one stops all threads for a tenth of a second, so their number is limited.
MAX_SLICED = 8
# Where in a grammar, and its lines.
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
LIMITS = LLParserLimits(initial_lexer_fuel=MAX_LEXER_FUEL, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


class LLGuidanceBackend:
    """Compiles with llguidance. Making one takes about a tenth of a second for 50,000 tokens.

    Args:
        vocabulary: the model's vocabulary.
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
        size = GrammarSize(len(grammar))
        if short is None:
            return Grammar(lambda: LLGuidanceParser(start, size), size.num_bytes)
        same = LLMatcher(short.tokenizer, grammar, log_level=0, limits=LIMITS)
        return Grammar(
            lambda: ShortParser(LLGuidanceParser(start, size), LLGuidanceParser(same, size), short), size.num_bytes
        )

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


class GrammarSize:
    """What a grammar has come to hold: the library does not tell, and its states grow with the texts that follow it."""

    def __init__(self, num_characters: int) -> None:
        self._at_start = LEAST_BYTES + CHARACTER_BYTES * num_characters
        self.num_tokens = 0

    def num_bytes(self) -> int:
        """The estimate as of now."""
        return self._at_start + min(TOKEN_BYTES * self.num_tokens, STATE_BYTES * MAX_LEXER_STATES)


class LLGuidanceParser:
    """See `Parser`. It begins where `start` stands, shares its states, and leaves it there; `size` counts these."""

    def __init__(self, start: LLMatcher, size: GrammarSize) -> None:
        self._matcher = start.deep_copy()
        self._size = size

    def fill(self, words: np.ndarray) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def accept(self, token_id: int) -> None:
        self._size.num_tokens += 1
        self._matcher.consume_token(token_id)

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def error(self) -> str | None:
        return self._matcher.get_error().splitlines()[0] if self._matcher.is_error() else None


def check(params: StructuredOutputParams) -> None:
    """Raise GrammarError unless `params` can be followed; needs no vocabulary.

    Work and memory may be anything here: clients' constraints are checked in a process that can be killed.
    """
    grammar = grammar_of(params, lambda text: [text])
    is_bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=LIMITS)
    if is_bad and messages:
        raise GrammarError(f"{kind_of(params)} is not valid: {_complaint(params, messages[0])}")
    if (problem := why_it_cannot_be_followed(grammar, LIMITS)) is not None:
        raise GrammarError(f"{kind_of(params)} is not valid: {one_line(problem)}")


def _complaint(params: StructuredOutputParams, message: str) -> str:
    """A message about the client's text: not about the grammar that it became, which the library shows it in."""
    if params.grammar is None:
        message = _PLACE.sub("", _EXCERPT.sub("", message))
    return one_line(message)


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
