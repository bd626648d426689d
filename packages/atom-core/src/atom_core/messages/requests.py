"""What enters the engine: sampling parameters and a tokenized request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from atom_core.messages.images import PlacedImage
from atom_core.messages.kv_transfer import KVTransferParams


class StructuredOutputParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the text must follow: exactly one of these.

    Attributes:
        json: a JSON schema, as an object or as text. The output is laid out as by Python's ``json.dumps``.
        json_object: any JSON object.
        regex: a regular expression that the whole output matches; no look-around.
        choice: the output is one of these texts.
        grammar: a context-free grammar, in GBNF ("root ::= ...") or Lark ("start: ...").
        structural_tag: free text, texts, JSON and tags put together: ``{"type": "structural_tag", "format": {...}}``
            (see `atom_core.structured_output.constraints.structural_tag`), or
            ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``: where a trigger has been written, one
            of the structures that begin with it follows.
    """

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None


class ThinkingBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long a model may think: then the mark that ends its thinking is all that can be sampled.

    Attributes:
        max_tokens: tokens of thinking at most, its marks not counted.
        begin, end: the marks. Thinking begins where the text does, or not at all.
        is_open: the prompt ends inside the thinking.
    """

    max_tokens: int
    begin: str
    end: str
    is_open: bool = False


PoolingKind = Literal["mean", "last", "cls"]
RequestKind = Literal["generate", "embed"]


class Pooling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one vector is made of the hidden states of a prompt.

    Attributes:
        kind: the mean over all tokens, or the state of the last or of the first one.
        normalizes: the vector is brought to length 1.
        classifies: the model's head makes scores of its labels of the vector, which is not normalized then.
    """

    kind: PoolingKind = "mean"
    normalizes: bool = True
    classifies: bool = False


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens of one request are chosen, and when to stop.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        max_tokens: tokens to generate at most; None means up to the model's context.
        ignore_eos: go on past the model's end-of-sequence tokens.
        stop_strings: texts that end the output, matched on text across token borders and trimmed from it.
        top_k: keep the k most likely tokens; -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: keep tokens at least this fraction as likely as the most likely one.
        n: independent samples of one prompt.
        seed: the seed of the random numbers; None lets the engine draw one.
        presence_penalty, frequency_penalty: subtracted from logits of generated tokens (OpenAI's definition).
        repetition_penalty: divides positive, multiplies negative logits of tokens in prompt or output; 1 is off.
        logit_bias: token id -> number added to its logit.
        allowed_token_ids: only these may be sampled.
        stop_token_ids: token ids that end the output, as the model's own end does.
        include_stop_str_in_output: keep the matched stop string.
        min_tokens: neither a stop token nor a stop string ends the output within this many tokens.
        logprobs: report the chosen token and this many most likely ones; None reports nothing.
        prompt_logprobs: report each prompt token and this many of the most likely ones in its place.
        skip_special_tokens: leave special tokens out of the text.
        logprob_token_ids: `logprobs` reports these tokens in place of the most likely ones, in this order.
        kept_special_token_ids: special tokens that stay in the text although the others are left out.
        bad_words: texts that are never generated, alone or after a space.
        bad_words_token_ids: `bad_words` as token ids; the engine fills it in from `bad_words`.
        structured_outputs: a grammar that the text follows; it ends where the grammar can, also with ignore_eos.
        thinking_budget: ends a model's thinking; the grammar, if any, has to allow thinking.
        kv_transfer_params: another engine computes the prompt, or goes on from it.
    """

    temperature: float = 1.0
    max_tokens: int | None = 64
    ignore_eos: bool = False
    stop_strings: list[str] | None = None
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    logprob_token_ids: list[int] | None = None
    kept_special_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    structured_outputs: StructuredOutputParams | None = None
    thinking_budget: ThinkingBudget | None = None
    kv_transfer_params: KVTransferParams | None = None

    @property
    def has_penalty(self) -> bool:
        """Whether tokens that stand there already change logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def needs_history(self) -> bool:
        """Whether what may be sampled depends on where the token stands, or on tokens before it."""
        return self.has_penalty or bool(self.bad_words_token_ids) or self.min_tokens > 0

    @property
    def is_constrained(self) -> bool:
        """Whether masks say which tokens may be sampled."""
        return self.structured_outputs is not None or self.thinking_budget is not None


class EngineRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A validated, tokenized request for one sample (``n`` samples are n requests that share `parent_id`).

    `request_id` is the engine's own and never comes again. `sampling_params` is resolved: `seed` and `max_tokens` are
    set, `n` is 1. `eos_token_ids` is empty when the end of sequence is to be ignored. `sample_index` is this sample's
    number among its siblings; siblings after the first wait for the first one's prompt blocks. `pooling` is how a
    request of kind "embed" makes one vector of the hidden states of its prompt. `num_first_tokens` is as in `Prompt`.
    `tenant` names who pays for it: tenants have equal shares of the engine while they wait for each other. `adapter_id`
    is the number under which the adapter was loaded that computes it; 0 for the model without one. `images` are the
    pictures of the prompt, in order.
    """

    request_id: str
    token_ids: list[int]
    sampling_params: SamplingParams
    kind: RequestKind = "generate"
    eos_token_ids: tuple[int, ...] = ()
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    parent_id: str | None = None
    sample_index: int = 0
    pooling: Pooling = Pooling()
    tenant: str = ""
    num_first_tokens: int = 0
    adapter_id: int = 0
    images: tuple[PlacedImage, ...] = ()

    @property
    def prefix_salt(self) -> str:
        """What keeps its cached prefixes apart from those of others."""
        return _prefix_salt(self.cache_salt, self.adapter_id)

    @property
    def caller_id(self) -> str:
        """The id that all samples of one prompt share."""
        return self.parent_id or self.request_id


class Prompt(msgspec.Struct, frozen=True):
    """A prompt of a submission, with what is resolved for it alone.

    `num_first_tokens` of a pair of texts are the first text with its marks, where the model tells the two apart by
    types of tokens; 0 where it does not, and where there is one text. `images` are its pictures, in order: `token_ids`
    has an image token for each of their embeddings.
    """

    request_id: str
    token_ids: list[int]
    seed: int
    max_tokens: int
    num_first_tokens: int = 0
    images: tuple[PlacedImage, ...] = ()

    def sample_ids(self, n: int) -> list[str]:
        """The ids of its `n` samples."""
        return [self.request_id] if n == 1 else [f"{self.request_id}/{index}" for index in range(n)]


class Submission(msgspec.Struct, frozen=True, omit_defaults=True):
    """Validated, tokenized prompts that were submitted together and share all but what `Prompt` holds.

    It crosses processes in this form: samples of a prompt share its tokens, and prompts share their parameters, whose
    lists and grammars may be long. `sampling_params.n` is the number of samples of each prompt. `adapter_id` is that of
    `EngineRequest`.
    """

    prompts: list[Prompt]
    sampling_params: SamplingParams
    kind: RequestKind = "generate"
    eos_token_ids: tuple[int, ...] = ()
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    pooling: Pooling = Pooling()
    tenant: str = ""
    adapter_id: int = 0

    @property
    def prefix_salt(self) -> str:
        """What keeps the cached prefixes of its prompts apart from those of others."""
        return _prefix_salt(self.cache_salt, self.adapter_id)

    @property
    def num_samples(self) -> int:
        """Samples of all prompts."""
        return len(self.prompts) * self.sampling_params.n

    def samples(self) -> Iterator[EngineRequest]:
        """A request for each sample of each prompt, in order."""
        n = self.sampling_params.n
        for prompt in self.prompts:
            params = self.sampling_params
            if (n, params.seed, params.max_tokens) != (1, prompt.seed, prompt.max_tokens):
                params = msgspec.structs.replace(params, n=1, seed=prompt.seed, max_tokens=prompt.max_tokens)
            for index, sample_id in enumerate(prompt.sample_ids(n)):
                yield EngineRequest(
                    request_id=sample_id,
                    token_ids=prompt.token_ids,
                    sampling_params=params,
                    kind=self.kind,
                    eos_token_ids=self.eos_token_ids,
                    arrival_time=self.arrival_time,
                    priority=self.priority,
                    cache_salt=self.cache_salt,
                    parent_id=None if n == 1 else prompt.request_id,
                    sample_index=index,
                    pooling=self.pooling,
                    tenant=self.tenant,
                    num_first_tokens=prompt.num_first_tokens,
                    adapter_id=self.adapter_id,
                    images=prompt.images,
                )


def _prefix_salt(cache_salt: str, adapter_id: int) -> str:
    """No `cache_salt` has a slash. An adapter that is loaded again has another number, since its weights may differ."""
    return f"{cache_salt}/{adapter_id}" if adapter_id else cache_salt
