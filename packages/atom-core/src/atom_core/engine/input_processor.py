"""`InputProcessor`: a caller's prompt and parameters become validated requests, one for each sample."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import get_args

import msgspec

from atom_core.engine.errors import InvalidRequestError
from atom_core.engine.validation import (
    RequestLimits,
    check_cache_salt,
    check_priority,
    check_prompt,
    check_sampling_params,
    check_structured_outputs,
    check_thinking_budget,
)
from atom_core.messages import EngineRequest, Pooling, SamplingParams
from atom_core.structured_output.checking import check_grammar
from atom_core.structured_output.choice import BackendSetting
from atom_core.structured_output.compiler import GrammarCompiler
from atom_core.structured_output.grammar import GrammarError
from atom_core.tokenization import Tokenizer, bad_words_token_ids

# Below this a temperature divides logits into infinities; it is greedy in all but name.
LEAST_TEMPERATURE = 1e-5


class InputProcessor:
    """Checks requests, fills in what they leave open, and fans samples out.

    Args:
        limits: what a request may ask.
        eos_token_ids: tokens that end a sequence unless a request ignores them.
        seed: base of the seeds drawn for requests without one; None is random.
        tokenizer: turns bad words into token ids; None refuses them, and grammars.
        grammar_backend: the engine's `structured_output_backend`: a grammar that it cannot follow is refused here.
    """

    def __init__(
        self,
        limits: RequestLimits,
        *,
        eos_token_ids: Sequence[int],
        seed: int | None = None,
        tokenizer: Tokenizer | None = None,
        grammar_backend: BackendSetting = "auto",
    ) -> None:
        self.limits = limits
        self._tokenizer = tokenizer
        self._grammars = GrammarCompiler(partial(check_grammar, setting=grammar_backend))
        self._eos_token_ids = tuple(eos_token_ids)
        self._random = random.Random(seed)

    def validate(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise InvalidRequestError where `process` would for a prompt and its parameters."""
        check_prompt(token_ids, self.limits)
        check_sampling_params(params, self.limits, num_prompt_tokens=len(token_ids))
        self.validate_constraint(params)
        if params.bad_words and self._tokenizer is None:
            raise InvalidRequestError("bad_words need a tokenizer, and skip_tokenizer_init left it out", "bad_words")

    def validate_constraint(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError for a constraint that is refused by its looks; `check_grammar` compiles it."""
        has_eos, has_tokenizer = bool(self._eos_token_ids), self._tokenizer is not None
        check_structured_outputs(params, has_eos=has_eos, has_tokenizer=has_tokenizer)
        check_thinking_budget(params, has_tokenizer=has_tokenizer)

    def check_grammar(self, params: SamplingParams) -> None:
        """Compile the grammar of `params`, if it has one: blocks, for no longer than a few seconds.

        Raises:
            InvalidRequestError: the grammar is not sound, or took too long.
        """
        if params.structured_outputs is None:
            return
        try:
            self._grammars.check(params.structured_outputs)
        except GrammarError as error:
            message = f"structured_outputs: {error}"
            raise InvalidRequestError(message, "structured_outputs", "invalid_grammar") from None

    def process(
        self,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[EngineRequest]:
        """One `EngineRequest` for each sample; the first one's `parent_id`, or else its id, is the caller's.

        Raises:
            InvalidRequestError: a request that cannot be served.
        """
        self.validate(token_ids, params)
        check_priority(priority)
        check_cache_salt(cache_salt)
        request_id = request_id or uuid.uuid4().hex
        arrival = time.monotonic()
        resolved = self._resolve(params, len(token_ids))
        eos = () if params.ignore_eos and params.structured_outputs is None else self._eos_token_ids
        prompt = list(token_ids)
        return [
            EngineRequest(
                request_id=request_id if params.n == 1 else f"{request_id}/{index}",
                token_ids=prompt,
                sampling_params=resolved,
                eos_token_ids=eos,
                arrival_time=arrival,
                priority=priority,
                cache_salt=cache_salt,
                parent_id=None if params.n == 1 else request_id,
                sample_index=index,
            )
            for index in range(params.n)
        ]

    def process_embedding(
        self,
        token_ids: Sequence[int],
        pooling: Pooling,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> EngineRequest:
        """The request for the embedding of a prompt.

        Raises:
            InvalidRequestError: a request that cannot be served.
        """
        check_prompt(token_ids, self.limits)
        check_priority(priority)
        check_cache_salt(cache_salt)
        if pooling not in get_args(Pooling):
            allowed = ", ".join(map(repr, get_args(Pooling)))
            raise InvalidRequestError(f"pooling is {pooling!r}; it must be one of {allowed}", "pooling")
        return EngineRequest(
            request_id=request_id or uuid.uuid4().hex,
            token_ids=list(token_ids),
            sampling_params=SamplingParams(seed=0, max_tokens=0),
            kind="embed",
            arrival_time=time.monotonic(),
            priority=priority,
            cache_salt=cache_salt,
            pooling=pooling,
        )

    def _resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        seed = self._random.getrandbits(63) if params.seed is None else params.seed
        room = self.limits.max_model_len - num_prompt_tokens
        greedy = params.temperature < LEAST_TEMPERATURE
        bad_words = None
        if params.bad_words and self._tokenizer is not None:
            bad_words = bad_words_token_ids(self._tokenizer, params.bad_words)
        return msgspec.structs.replace(
            params,
            n=1,
            seed=seed,
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            temperature=0.0 if greedy else float(params.temperature),
            top_k=-1 if params.top_k in (0, -1) or params.top_k >= self.limits.vocab_size else params.top_k,
            top_p=float(params.top_p),
            bad_words_token_ids=bad_words,
        )
