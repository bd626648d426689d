"""`Compilers`: the backends over one model's vocabulary, each with its own threads and memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.compiler import Compilation, GrammarCompiler
from atom_core.structured_output.constraints.choice import BackendSetting, choose, has_xgrammar
from atom_core.structured_output.constraints.grammar import kind_of
from atom_core.structured_output.llguidance.backend import LLGuidanceBackend
from atom_core.structured_output.vocabulary import Vocabulary
from atom_core.tokenization import Tokenizer

if TYPE_CHECKING:
    from atom_core.structured_output.xgrammar.backend import XGrammarBackend

logger = logging.getLogger(__name__)


class Compilers:
    """Compiles each constraint with the backend that suits it. A backend that hangs holds up no other.

    Args:
        tokenizer, vocab_size, eos_token_ids: the model's.
        setting: `structured_output_backend`.
        clock: seconds, for deadlines.

    Attributes:
        vocabulary: the model's vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        setting: BackendSetting = "auto",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.vocabulary = Vocabulary(tokenizer, vocab_size)
        self._eos_token_ids = tuple(eos_token_ids)
        self._setting: BackendSetting = setting
        self._has_xgrammar = setting != "llguidance" and has_xgrammar()
        self._lock = threading.Lock()
        self._xgrammar: XGrammarBackend | None = None
        self._told: set[tuple[str, ...]] = set()
        llguidance = LLGuidanceBackend(self.vocabulary, eos_token_ids)
        self._compilers = {
            "llguidance": GrammarCompiler(llguidance.compile, clock=clock),
            "xgrammar": GrammarCompiler(self._compile_with_xgrammar, clock=clock),
        }

    def choose(self, params: StructuredOutputParams) -> tuple[str, ...]:
        """Backends to try for a constraint, in this order (see `choice.choose`); each reason is logged once."""
        names, why = choose(params, self._setting, self._has_xgrammar)
        told = (kind_of(params), names[0], why)  # as many as there are objections in `xgrammar.limits`
        if told not in self._told:
            self._told.add(told)
            logger.info("structured output: %s goes to %s: %s", *told)
        return names

    def submit(self, backend: str, params: StructuredOutputParams) -> Compilation:
        """The grammar of `params`, from the threads of a backend."""
        return self._compilers[backend].submit(params)

    def leave(self, backend: str, compilation: Compilation) -> None:
        """A caller no longer waits for what `submit` gave."""
        self._compilers[backend].leave(compilation)

    def close(self) -> None:
        """Let the threads end."""
        for compiler in self._compilers.values():
            compiler.close()

    def _compile_with_xgrammar(self, params: StructuredOutputParams) -> Grammar:
        with self._lock:
            if self._xgrammar is None:
                from atom_core.structured_output.xgrammar.backend import XGrammarBackend

                self._xgrammar = XGrammarBackend(self.vocabulary, self._eos_token_ids)
        return self._xgrammar.compile(params)
