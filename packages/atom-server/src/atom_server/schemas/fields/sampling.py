"""The fields that chat and text completions share: every number finite and bounded, every list of limited length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from atom_core import SamplingParams, StructuredOutputParams
from atom_core.engine.inputs.validation import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKENS,
    MAX_LOGPROBS,
    MAX_REPETITION_PENALTY,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    MIN_REPETITION_PENALTY,
)
from atom_server.errors import unsupported
from atom_server.schemas.fields.kv_transfer import KVTransfer
from atom_server.schemas.fields.model_request import MAX_INTEGER, PromptRequest, as_list, at_most
from atom_server.schemas.fields.strict_model import StrictModel
from atom_server.schemas.fields.structured import ResponseFormat, StructuredOutputs
from atom_server.schemas.fields.unsupported import refuse_unsupported

MAX_TOKENS = MAX_INTEGER
# The most that --max-num-seqs can be: no engine runs more at once.
MAX_SAMPLES = 65_536
# About the largest vocabulary; the engine knows its own.
MAX_ALLOWED_TOKENS = 2**18


_TOKEN_ID = re.compile(r"0|-?[1-9][0-9]{0,9}")


def _integer_keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # Neither blanks, signs, underscores, leading zeros nor digits of other scripts, all of which int() takes.
    if not all(isinstance(key, str) and _TOKEN_ID.fullmatch(key) for key in value):
        raise ValueError("the keys must be token ids")
    return {int(key): bias for key, bias in value.items()}


TokenId = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]
_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
_StopList = Annotated[list[_StopString], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)]
StopStrings = Annotated[_StopList, BeforeValidator(as_list, json_schema_input_type=_StopString | _StopList)]


class StreamOptions(StrictModel):
    """What a stream tells besides text."""

    include_usage: bool = Field(False, description="A last chunk with the usage and no choices.")
    continuous_usage_stats: bool = Field(False, description="The usage so far in every chunk.")


class GenerationRequest(PromptRequest):
    """Fields of every request that generates text."""

    engine_names: ClassVar[Mapping[str, str]] = {"stop_strings": "stop"}

    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] = Field(-1, description="-1 and 0 keep every token.")
    min_p: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] = 0.0
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        None, description="Left out: whatever the context has left after the prompt."
    )
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    stop: StopStrings = Field([], description="A string or a list of strings.")
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_TOKENS)] = Field([])
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[
        float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY, allow_inf_nan=False)
    ] = 1.0
    logit_bias: Annotated[
        dict[int, Bias], Field(max_length=MAX_LOGIT_BIAS), BeforeValidator(_integer_keys), at_most(MAX_LOGIT_BIAS)
    ] = Field({}, description="Token id -> number added to its logit.")
    allowed_token_ids: (
        Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None
    ) = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    logprob_token_ids: (
        Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_LOGPROB_TOKENS)] | None
    ) = Field(None, description="With logprobs: tell those of these tokens, in place of the likeliest.")
    bad_words: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]],
        Field(fail_fast=True, max_length=MAX_BAD_WORDS),
    ] = Field([], description="Texts that are never generated.")
    response_format: ResponseFormat | None = None
    structured_outputs: Annotated[StructuredOutputs, at_most(16)] | None = None
    kv_transfer_params: KVTransfer | None = Field(
        None, description="One server computes the prompt, and another one goes on from it (see prefill-apart.md)."
    )
    return_token_ids: bool = Field(False, description="Token ids of prompt and output, beside the text.")
    return_tokens_as_token_ids: bool = Field(False, description='Tokens of logprobs as "token_id:17".')
    metadata: dict[str, Any] | None = Field(None, description="Ignored.")
    store: bool = Field(False, description="Ignored: only responses are kept.")

    @property
    def num_samples_each(self) -> int:
        return self.n

    def name_of(self, parameter: str | None) -> str | None:
        if parameter == "structured_outputs" and self.structured_outputs is None:
            return "response_format"
        return super().name_of(parameter)

    def sampling_params(self, **overrides: Any) -> SamplingParams:
        """The engine's parameters for this request; `overrides` are those that chat and text spell differently."""
        own = vars(self)
        values: dict[str, Any] = {name: own[name] for name in SamplingParams.__struct_fields__ if name in own}
        values |= {name: values[name] or None for name in ("logit_bias", "stop_token_ids", "bad_words")}
        values |= {
            "stop_strings": self.stop or None,
            "top_k": self.top_k or -1,
            "structured_outputs": self.constraint(),
            "kv_transfer_params": None if self.kv_transfer_params is None else self.kv_transfer_params.params(),
        }
        return SamplingParams(**(values | overrides))

    def constraint(self) -> StructuredOutputParams | None:
        """What the text must follow."""
        if self.structured_outputs is not None:
            return self.structured_outputs.constraint()
        return None if self.response_format is None else self.response_format.constraint()

    def refuse_what_is_missing(self) -> None:
        """Refuse what is not built, and fields that exclude each other.

        Raises:
            APIError: 400 with code "unsupported_parameter".
        """
        refuse_unsupported(self.model_extra)
        if self.structured_outputs is not None and self.response_format and self.response_format.type != "text":
            raise unsupported("'structured_outputs' and 'response_format' exclude each other", "structured_outputs")
        if self.stream and self.prompt_logprobs is not None:
            raise unsupported("'prompt_logprobs' cannot be streamed; leave 'stream' out", "prompt_logprobs")
        if self.stream and self.kv_transfer_params is not None and self.kv_transfer_params.do_remote_decode:
            message = "'kv_transfer_params' come with a whole answer; leave 'stream' out with 'do_remote_decode'"
            raise unsupported(message, "kv_transfer_params")
        if self.stream_options is not None and not self.stream:
            raise unsupported("'stream_options' needs \"stream\": true", "stream_options")
