"""Checks everything that a client can send, before the engine sees it: nothing admitted can make the engine raise."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from atom_core.errors import InvalidRequestError
from atom_core.kv_transfer.config import KVRole
from atom_core.messages import SamplingParams, ThinkingBudget
from atom_core.structured_output.constraints.grammar import GrammarError, check_limits
from atom_models.checkpoint.text_padding import TextPadding
from atom_models.vision.spec import VisionSpec

MAX_LOGPROBS = 20
MAX_LOGPROB_TOKENS = 128
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 16, 256
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH = 128, 256
MAX_PRIORITY = 100
# Divided by less, a logit may be infinite.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100
MAX_TENANT = 128
# Checking so many ids takes about a millisecond.
SLICE_TOKENS = 16_384
CACHE_SALT = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True)
class RequestLimits:
    """What a request may ask of this engine.

    `why_no_text` is why a model writes none, as the end of a sentence; None where it does. An encoder's prompts may be
    as long as its context. `kv_role` is what the engine does for others, or they for it. `images`
    says which pictures a prompt may have; None where it has none. `text_padding` is what texts are filled up with.
    """

    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    max_request_logprobs: int = 2**21
    why_no_text: str | None = None
    is_encoder: bool = False
    kv_role: KVRole | None = None
    images: VisionSpec | None = None
    text_padding: TextPadding | None = None

    @property
    def max_prompt_len(self) -> int:
        """Tokens of a prompt at most; where text is written, one token has room behind it."""
        return self.max_model_len if self.is_encoder else self.max_model_len - 1


def check_prompt_length(token_ids: Sequence[int], limits: RequestLimits) -> None:
    """Raise InvalidRequestError unless `token_ids` has at least one token, and no more than the model takes."""
    if isinstance(token_ids, str | bytes) or not isinstance(token_ids, Sequence):
        raise InvalidRequestError(f"prompt is a {type(token_ids).__name__}; token ids are a list of integers", "prompt")
    if not token_ids:
        raise InvalidRequestError("prompt is empty; it must hold at least one token", "prompt", "empty_prompt")
    if len(token_ids) > limits.max_prompt_len:
        raise prompt_too_long(len(token_ids), limits.max_model_len, most=limits.max_prompt_len)


def check_prompt_ids(token_ids: Sequence[Any], vocab_size: int, *, name: str = "prompt") -> None:
    """Raise InvalidRequestError for the first of `token_ids` that is no token id; `name` is the field that has them.

    A slice is checked in C, and no other thread runs meanwhile. Between two slices the event loop can.
    """
    as_ids = list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]
    for start in range(0, len(token_ids), SLICE_TOKENS):
        part = list(token_ids[start : start + SLICE_TOKENS])
        try:
            msgspec.convert(part, as_ids)
        except msgspec.ValidationError:
            wrong = next(token_id for token_id in part if not _is_token_id(token_id, vocab_size))
            message = f"{name} holds {_shown(wrong)}; token ids are integers from 0 to {vocab_size - 1}"
            raise InvalidRequestError(message, name, "invalid_token_id") from None


def _is_token_id(value: Any, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size


def check_text(name: str, text: str) -> None:
    """Raise InvalidRequestError for a text with half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} holds half of a surrogate pair, {text[error.start]!a} at character {error.start}, which is no "
            "character: send Unicode text",
            name,
        ) from None


def prompt_too_long(num_tokens: int, max_model_len: int, param: str = "prompt", *, most: int) -> InvalidRequestError:
    """The error for a prompt of more than `most` tokens; `param` is the field that it came from."""
    together = "" if most == max_model_len else ", prompt and output together"
    message = (
        f"prompt has {num_tokens} tokens; this model's context is {max_model_len} tokens{together}: send at most {most}"
    )
    return InvalidRequestError(message, param, "context_length_exceeded")


def check_sampling_params(params: SamplingParams, limits: RequestLimits) -> None:
    """Raise InvalidRequestError for the first parameter that is not allowed; the message names it and what is."""
    if limits.why_no_text is not None:
        raise InvalidRequestError(f"this model cannot generate: {limits.why_no_text}; it makes embeddings", "model")
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling_params is a {type(params).__name__}; it must be SamplingParams")
    _number("temperature", params.temperature, 0, None)
    _integer("top_k", params.top_k, -1, None)
    _number("top_p", params.top_p, 0, 1, above_minimum=True)
    _number("min_p", params.min_p, 0, 1)
    _number("presence_penalty", params.presence_penalty, -2, 2)
    _number("frequency_penalty", params.frequency_penalty, -2, 2)
    _number("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    _integer("n", params.n, 1, limits.max_num_seqs)
    if params.seed is not None:
        _integer("seed", params.seed, -(2**63), 2**63 - 1)
    for name in ("logprobs", "prompt_logprobs"):
        if (value := getattr(params, name)) is not None:
            _integer(name, value, 0, MAX_LOGPROBS)
    for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
        if not isinstance(value := getattr(params, name), bool):
            raise InvalidRequestError(f"{name} is {value!r}; it must be true or false", name, "invalid_type")
    if params.max_tokens is not None:
        _integer("max_tokens", params.max_tokens, 0, None)
    _check_texts("stop", params.stop_strings, MAX_STOP_STRINGS, MAX_STOP_LENGTH)
    _check_texts("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
    _token_ids("stop_token_ids", params.stop_token_ids, limits, MAX_STOP_TOKENS)
    _token_ids("logprob_token_ids", params.logprob_token_ids, limits, MAX_LOGPROB_TOKENS)
    if params.logprob_token_ids is not None and params.logprobs is None:
        raise InvalidRequestError("logprob_token_ids need logprobs", "logprob_token_ids")
    _token_ids("kept_special_token_ids", params.kept_special_token_ids, limits, MAX_STOP_TOKENS)
    _token_ids("allowed_token_ids", params.allowed_token_ids, limits, limits.vocab_size)
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise InvalidRequestError(
            "allowed_token_ids is empty; leave it out, or name at least one token", "allowed_token_ids"
        )
    _check_logit_bias(params.logit_bias, limits)


def check_lengths(params: SamplingParams, limits: RequestLimits, *, num_prompt_tokens: int) -> None:
    """Raise InvalidRequestError unless what is to be generated fits the context behind a prompt."""
    room = limits.max_model_len - num_prompt_tokens
    if params.max_tokens is not None and params.max_tokens > room:
        raise InvalidRequestError(
            f"max_tokens is {_shown(params.max_tokens)} and the prompt has {num_prompt_tokens} tokens; this model's "
            f"context is {limits.max_model_len} tokens, prompt and output together: ask for at most {room}",
            "max_tokens",
            "context_length_exceeded",
        )
    _integer("min_tokens", params.min_tokens, 0, room if params.max_tokens is None else params.max_tokens)


def num_logprobs(params: SamplingParams, limits: RequestLimits, *, num_prompt_tokens: int) -> int:
    """The most log-probabilities that all samples of a prompt give: of chosen tokens, and of others beside them."""
    num_output_tokens = limits.max_model_len - num_prompt_tokens if params.max_tokens is None else params.max_tokens
    of_prompt = 0 if params.prompt_logprobs is None else num_prompt_tokens * (1 + params.prompt_logprobs)
    num_top = max(params.logprobs or 0, len(params.logprob_token_ids or ()))
    of_output = 0 if params.logprobs is None else num_output_tokens * (1 + num_top)
    return params.n * (of_prompt + of_output)


def check_num_logprobs(count: int, limits: RequestLimits) -> None:
    """Raise InvalidRequestError where a request asks for more log-probabilities than may be kept for it."""
    if count > limits.max_request_logprobs:
        raise InvalidRequestError(
            f"this request asks for up to {count} log-probabilities, over all samples and tokens; at most "
            f"{limits.max_request_logprobs} are kept (max_request_logprobs): ask for fewer of each token, for fewer "
            "samples or prompts, or for a smaller max_tokens",
            "logprobs",
        )


def missing_tokenizer(param: str, what: str | None = None) -> InvalidRequestError:
    """The error for a parameter that needs a tokenizer, where the engine has none.

    Args:
        what: the parameter as the message calls it; None is its name.
    """
    return InvalidRequestError(f"{what or param} needs a tokenizer, and skip_tokenizer_init left it out", param)


def check_thinking_budget(params: SamplingParams, *, has_tokenizer: bool) -> None:
    """Raise InvalidRequestError unless a thinking budget, if any, has a length and marks."""
    budget, name = params.thinking_budget, "thinking_budget"
    if budget is None:
        return
    if not isinstance(budget, ThinkingBudget):
        raise InvalidRequestError(f"{name} is a {type(budget).__name__}; it must be ThinkingBudget", name)
    _integer(name, budget.max_tokens, 0, None)
    _check_texts(name, [budget.begin, budget.end], 2, MAX_STOP_LENGTH)
    if not has_tokenizer:
        raise missing_tokenizer(name)


def check_structured_outputs(params: SamplingParams, *, has_eos: bool, has_tokenizer: bool) -> None:
    """Raise InvalidRequestError unless this engine can follow the constraint, if there is one."""
    if params.structured_outputs is None:
        return
    name = "structured_outputs"
    try:
        check_limits(params.structured_outputs)
    except GrammarError as error:
        raise InvalidRequestError(f"{name}: {error}", name) from None
    if params.allowed_token_ids is not None:
        raise InvalidRequestError(f"allowed_token_ids and {name} exclude each other: leave one out", name)
    if not has_tokenizer:
        raise missing_tokenizer(name)
    if not has_eos:
        raise InvalidRequestError(f"{name} needs a model with an end-of-sequence token; this one names none", name)


def check_cache_salt(cache_salt: str) -> None:
    """Raise InvalidRequestError unless `cache_salt` is empty or a short plain word."""
    if not isinstance(cache_salt, str) or (cache_salt and not CACHE_SALT.fullmatch(cache_salt)):
        raise InvalidRequestError("cache_salt must be 1 to 64 of the characters A-Z a-z 0-9 _ . -", "cache_salt")


def check_priority(priority: int) -> None:
    """Raise InvalidRequestError unless `priority` is an integer within `MAX_PRIORITY` of 0; lower runs first."""
    _integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)


def check_tenant(tenant: str) -> None:
    """Raise InvalidRequestError unless `tenant` is a text of at most `MAX_TENANT` characters."""
    if not isinstance(tenant, str) or len(tenant) > MAX_TENANT:
        raise InvalidRequestError(f"tenant is {_shown(tenant)}; it must be at most {MAX_TENANT} characters", "tenant")


def _check_texts(name: str, texts: Any, most: int, longest: int) -> None:
    if texts is None:
        return
    allowed = f"a list of at most {most} texts of 1 to {longest} characters"
    if not isinstance(texts, list | tuple) or len(texts) > most:
        raise InvalidRequestError(f"{name} must be {allowed}", name)
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= longest:
            raise InvalidRequestError(f"{name} holds {_shown(text)}; it must be {allowed}", name)
        check_text(name, text)


def _check_logit_bias(logit_bias: Any, limits: RequestLimits) -> None:
    if logit_bias is None:
        return
    if not isinstance(logit_bias, dict) or len(logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(f"logit_bias must be an object of at most {MAX_LOGIT_BIAS} token ids", "logit_bias")
    _token_ids("logit_bias", list(logit_bias), limits, MAX_LOGIT_BIAS)
    for bias in logit_bias.values():
        _number("logit_bias", bias, -100, 100)


def _token_ids(name: str, token_ids: Any, limits: RequestLimits, most: int) -> None:
    if token_ids is None:
        return
    if not isinstance(token_ids, list | tuple) or len(token_ids) > most:
        raise InvalidRequestError(f"{name} must be a list of at most {most} token ids", name)
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < limits.vocab_size:
            raise InvalidRequestError(
                f"{name} holds {_shown(token_id)}; token ids are integers from 0 to {limits.vocab_size - 1}",
                name,
                "invalid_token_id",
            )


def _integer(name: str, value: Any, minimum: int, maximum: int | None) -> None:
    allowed = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} is {_shown(value)}; it must be an integer {allowed}", name, "invalid_type")
    if value < minimum or (maximum is not None and value > maximum) or value > 2**63:
        raise InvalidRequestError(f"{name} is {_shown(value)}; it must be an integer {allowed}", name)


def _number(name: str, value: Any, minimum: float, maximum: float | None, *, above_minimum: bool = False) -> None:
    least = f"above {minimum}" if above_minimum else f"at least {minimum}"
    allowed = least if maximum is None else f"{least} and at most {maximum}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(f"{name} is {_shown(value)}; it must be a number {allowed}", name, "invalid_type")
    is_finite = math.isfinite(value) if isinstance(value, float) else value < 2**63
    too_low = value <= minimum if above_minimum else value < minimum
    if not is_finite or too_low or (maximum is not None and value > maximum):
        raise InvalidRequestError(f"{name} is {_shown(value)}; it must be a finite number {allowed}", name)


def _shown(value: Any) -> str:
    """A client's value in a message: never long."""
    try:
        text = repr(value)
    except Exception:  # a huge integer does not print
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 60 else text[:57] + "..."
