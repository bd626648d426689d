"""`InputProcessor`: a caller's prompts and parameters become a `Submission` that the engine can take as it is."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast, get_args

import msgspec

from atom_core.config.engine_args import EngineArgs
from atom_core.config.kv_transfer import read_kv_transfer
from atom_core.engine.info import EngineInfo
from atom_core.engine.inputs.checked_prompts import CheckedPrompts
from atom_core.engine.inputs.kv_transfer import check_kv_transfer
from atom_core.engine.inputs.placed_images import PlacedPrompt, place_images
from atom_core.engine.inputs.validation import (
    RequestLimits,
    check_cache_salt,
    check_lengths,
    check_num_logprobs,
    check_priority,
    check_prompt_ids,
    check_prompt_length,
    check_sampling_params,
    check_structured_outputs,
    check_tenant,
    check_thinking_budget,
    missing_tokenizer,
    num_logprobs,
)
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, PlacedImage, Pooling, PoolingKind, Prompt, SamplingParams, Submission
from atom_core.structured_output.compiler import CompilerBusyError, GrammarCompiler
from atom_core.structured_output.constraints.choice import BackendSetting
from atom_core.structured_output.constraints.grammar import GrammarError
from atom_core.structured_output.judge import JudgeError, shared_judges
from atom_core.tokenization import Tokenizer, bad_words_token_ids

# Below this a temperature divides logits into infinities; it is greedy in all but name.
LEAST_TEMPERATURE = 1e-5


class InputProcessor:
    """Checks requests, fills in what they leave open, and names them: ids are the engine's own and never come again.

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
        self._grammars = GrammarCompiler(partial(shared_judges().check, setting=grammar_backend), deadline=math.inf)
        self._eos_token_ids = tuple(eos_token_ids)
        self._random = random.Random(seed)
        self._ids = itertools.count()

    @classmethod
    def of_engine(
        cls, info: EngineInfo, args: EngineArgs, tokenizer: Tokenizer | None, *, why_no_text: str | None
    ) -> InputProcessor:
        """The processor of an engine with these settings; `why_no_text` is as in `RequestLimits`."""
        limits = RequestLimits(
            info.max_model_len,
            info.vocab_size,
            info.max_num_seqs,
            max_request_logprobs=args.max_request_logprobs,
            why_no_text=why_no_text,
            is_encoder=info.is_encoder,
            images=info.images,
            text_padding=info.text_padding,
            kv_role=None if (transfer := read_kv_transfer(args.kv_transfer_config)) is None else transfer.kv_role,
        )
        return cls(
            limits,
            eos_token_ids=info.eos_token_ids,
            seed=args.seed,
            tokenizer=tokenizer,
            grammar_backend=cast(BackendSetting, args.structured_output_backend),
        )

    def validate(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError for parameters that `process` would refuse with any prompt."""
        check_sampling_params(params, self.limits)
        self.validate_constraint(params)
        for param, texts in (("stop", params.stop_strings), ("bad_words", params.bad_words)):
            if texts and self._tokenizer is None:
                raise missing_tokenizer(param)

    def validate_constraint(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError for a constraint that is refused without compiling it, as `check_grammar` does."""
        has_eos, has_tokenizer = bool(self._eos_token_ids), self._tokenizer is not None
        check_structured_outputs(params, has_eos=has_eos, has_tokenizer=has_tokenizer)
        check_thinking_budget(params, has_tokenizer=has_tokenizer)

    def check_grammar(self, params: SamplingParams) -> None:
        """Compile the grammar of `params`, if there is one. Blocks, but for a few seconds at most.

        Raises:
            InvalidRequestError: the grammar is not sound, or took too long; with code "queue_full" so many others are
                being compiled that it has to be tried again later.
        """
        if params.structured_outputs is not None:
            with _told_of_grammars():
                self._grammars.check(params.structured_outputs)

    async def check_grammar_async(self, params: SamplingParams) -> None:
        """The same for a coroutine: its event loop goes on."""
        if params.structured_outputs is not None:
            with _told_of_grammars():
                await self._grammars.check_async(params.structured_outputs)

    def with_bad_words(self, params: SamplingParams) -> SamplingParams:
        """`params` with the token ids of their bad words, so that `process` need not find them for each prompt.

        Raises:
            InvalidRequestError: a parameter that no prompt can go with.
        """
        check_sampling_params(params, self.limits)
        if not params.bad_words or self._tokenizer is None:
            return params
        token_ids = bad_words_token_ids(self._tokenizer, params.bad_words)
        return msgspec.structs.replace(params, bad_words_token_ids=token_ids)

    def check_prompts(
        self,
        prompts: Sequence[Sequence[int]],
        num_first_tokens: Sequence[int] = (),
        images: Sequence[Sequence[Image]] = (),
    ) -> CheckedPrompts:
        """Check the token ids and pictures of prompts, so that `process` need not; texts are padded. Blocks.

        Args:
            prompts: token ids, with one image token (`VisionSpec.image_token_id`) for each picture: it is widened.
            num_first_tokens: as in `Prompt`, for each of them; empty where no prompt is a pair.
            images: the pictures of each, in order, as `VisionSpec.fitted` has them; empty where no prompt has any.

        Raises:
            InvalidRequestError: one of them is no prompt of this model.
        """
        for prompt in prompts:
            check_prompt_length(prompt, self.limits)
            check_prompt_ids(prompt, self.limits.vocab_size)
        pairs = zip(prompts, images or ((),) * len(prompts), strict=True)
        placed = [place_images(prompt, own, self.limits.images) for prompt, own in pairs]
        for each in placed if images else ():
            check_prompt_length(each.token_ids, self.limits)
        of_prompts = [each.images for each in placed] if any(images) else ()
        return CheckedPrompts([self._padded(each) for each in placed], num_first_tokens, of_prompts)

    def _padded(self, prompt: PlacedPrompt) -> list[int]:
        padding = self.limits.text_padding
        return prompt.token_ids if padding is None or prompt.images else padding.padded(prompt.token_ids)

    def process(
        self,
        prompts: Sequence[Sequence[int]] | CheckedPrompts,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter_id: int = 0,
    ) -> Submission:
        """Check prompts that share their parameters, and resolve what they leave open.

        Parameters are checked once, however many prompts share them: their lists may be long.

        Raises:
            InvalidRequestError: one of them cannot be served.
        """
        self.validate(params)
        submission = self._submission(
            prompts, params, priority=priority, cache_salt=cache_salt, tenant=tenant, adapter_id=adapter_id
        )
        check_kv_transfer(params, self.limits.kv_role, len(submission.prompts))
        return msgspec.structs.replace(
            submission,
            sampling_params=self._resolve(params),
            eos_token_ids=() if params.ignore_eos and params.structured_outputs is None else self._eos_token_ids,
        )

    def check_num_logprobs(self, submission: Submission) -> None:
        """Raise InvalidRequestError if the prompts together ask for more log-probabilities than one request may."""
        params = submission.sampling_params
        counts = (num_logprobs(params, self.limits, num_prompt_tokens=len(p.token_ids)) for p in submission.prompts)
        check_num_logprobs(sum(counts), self.limits)

    def process_embedding(
        self,
        prompts: Sequence[Sequence[int]] | CheckedPrompts,
        pooling: Pooling,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter_id: int = 0,
    ) -> Submission:
        """Check prompts whose embeddings are asked for.

        Raises:
            InvalidRequestError: one of them cannot be served.
        """
        if pooling.kind not in get_args(PoolingKind):
            allowed = ", ".join(map(repr, get_args(PoolingKind)))
            raise InvalidRequestError(f"pooling is {pooling.kind!r}; it must be one of {allowed}", "pooling")
        params = SamplingParams(seed=0, max_tokens=0)
        submission = self._submission(
            prompts, params, priority=priority, cache_salt=cache_salt, tenant=tenant, adapter_id=adapter_id
        )
        return msgspec.structs.replace(submission, kind="embed", pooling=pooling)

    def _submission(
        self,
        prompts: Sequence[Sequence[int]] | CheckedPrompts,
        params: SamplingParams,
        *,
        priority: int,
        cache_salt: str,
        tenant: str,
        adapter_id: int,
    ) -> Submission:
        """Checked prompts, with parameters as they came."""
        check_priority(priority)
        check_cache_salt(cache_salt)
        check_tenant(tenant)
        checked = prompts if isinstance(prompts, CheckedPrompts) else self.check_prompts(prompts)
        # Every limit is linear in the length: what the shortest and the longest may ask, those between them may.
        for bound in (min, max) if checked.token_ids else ():
            self._check_lengths(bound(checked.token_ids, key=len), params)
        count = len(checked.token_ids)
        rows = zip(
            checked.token_ids, checked.num_first_tokens or [0] * count, checked.images or [()] * count, strict=True
        )
        return Submission(
            prompts=[self._prompt(token_ids, params, num_first, images) for token_ids, num_first, images in rows],
            sampling_params=params,
            arrival_time=time.monotonic(),
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            adapter_id=adapter_id,
        )

    def _check_lengths(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        check_prompt_length(token_ids, self.limits)  # an engine that was started anew may have another context
        check_lengths(params, self.limits, num_prompt_tokens=len(token_ids))
        check_num_logprobs(num_logprobs(params, self.limits, num_prompt_tokens=len(token_ids)), self.limits)

    def _prompt(
        self, token_ids: list[int], params: SamplingParams, num_first_tokens: int, images: tuple[PlacedImage, ...]
    ) -> Prompt:
        room = self.limits.max_model_len - len(token_ids)
        return Prompt(
            request_id=str(next(self._ids)),
            token_ids=token_ids,
            seed=self._random.getrandbits(63) if params.seed is None else params.seed,
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            num_first_tokens=num_first_tokens,
            images=images,
        )

    def _resolve(self, params: SamplingParams) -> SamplingParams:
        greedy = params.temperature < LEAST_TEMPERATURE
        bad_words = None
        if params.bad_words and self._tokenizer is not None:
            bad_words = params.bad_words_token_ids or bad_words_token_ids(self._tokenizer, params.bad_words)
        return msgspec.structs.replace(
            params,
            temperature=0.0 if greedy else float(params.temperature),
            top_k=-1 if params.top_k == 0 or params.top_k >= self.limits.vocab_size else params.top_k,
            top_p=float(params.top_p),
            bad_words_token_ids=bad_words,
        )


@contextlib.contextmanager
def _told_of_grammars() -> Iterator[None]:
    """Turn what is wrong with a grammar into InvalidRequestError."""
    name = "structured_outputs"
    try:
        yield
    except GrammarError as error:
        raise InvalidRequestError(f"{name}: {error}", name, "invalid_grammar") from None
    except (CompilerBusyError, JudgeError) as error:
        raise InvalidRequestError(f"{name}: {error}", name, "queue_full") from None
