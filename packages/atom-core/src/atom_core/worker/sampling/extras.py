"""`SamplingExtras`: the sampling parameters that only some requests use, made ready once for each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atom_core.messages import NewRequest, SamplingParams
from atom_kernels.sampling import penalize


@dataclass(frozen=True)
class SamplingExtras:
    """What is done to a row of logits before sampling, and reported after it.

    Attributes:
        params: the request's sampling parameters.
        num_prompt_tokens: tokens of the request's prompt.
        bias_ids, bias_values: token ids and what is added to their logits; None without a bias.
        allowed_ids: the only tokens that may be sampled; None allows all.
        banned_ids: stop tokens, which cannot be sampled before `min_tokens` tokens; None without.
        bad_words: token ids; the last of each is banned after the others.
        logprob_ids: the tokens to report in place of the most likely ones; None reports those.
    """

    params: SamplingParams
    num_prompt_tokens: int
    bias_ids: torch.Tensor | None
    bias_values: torch.Tensor | None
    allowed_ids: torch.Tensor | None
    banned_ids: torch.Tensor | None
    bad_words: list[list[int]]
    logprob_ids: torch.Tensor | None

    @classmethod
    def of(cls, request: NewRequest, vocab_size: int, device: str) -> SamplingExtras | None:
        """The extras of a request, None where it has none."""
        params = request.sampling_params
        bias = params.logit_bias or {}
        banned = sorted({*request.eos_token_ids, *(params.stop_token_ids or ())}) if params.min_tokens > 0 else []
        banned = [token_id for token_id in banned if token_id < vocab_size]
        bad_words = [ids for ids in params.bad_words_token_ids or () if ids and max(ids) < vocab_size]
        reports = params.logprobs is not None or params.prompt_logprobs is not None
        if not (bias or banned or bad_words or params.allowed_token_ids or params.has_penalty or reports):
            return None

        def tensor(values: Sequence[float] | None) -> torch.Tensor | None:
            return torch.tensor(values, device=device) if values else None

        return cls(
            params=params,
            num_prompt_tokens=request.num_prompt_tokens,
            bias_ids=tensor(list(bias)),
            bias_values=tensor([float(value) for value in bias.values()]),
            allowed_ids=tensor(sorted(set(params.allowed_token_ids or ()))),
            banned_ids=tensor(banned),
            bad_words=bad_words,
            logprob_ids=tensor(params.logprob_token_ids),
        )

    def process(self, logits_V: torch.Tensor, history: torch.Tensor) -> None:
        """Change one row of float32 logits in place; `history` holds the request's tokens so far, prompt first.

        The bias comes before the penalties, as in vLLM and transformers: a repetition penalty scales the sum.
        """
        if self.bias_ids is not None and self.bias_values is not None:
            logits_V[self.bias_ids] += self.bias_values
        if self.params.has_penalty:
            penalize(
                logits_V,
                history,
                self.num_prompt_tokens,
                self.params.presence_penalty,
                self.params.frequency_penalty,
                self.params.repetition_penalty,
            )
        if self.allowed_ids is not None:
            allowed = logits_V[self.allowed_ids]
            logits_V.fill_(float("-inf"))
            logits_V[self.allowed_ids] = allowed
        if self.bad_words:
            self._ban_words(logits_V, history[self.num_prompt_tokens :])
        if self.banned_ids is not None and len(history) - self.num_prompt_tokens < self.params.min_tokens:
            self._ban(logits_V, self.banned_ids)

    def _ban_words(self, logits_V: torch.Tensor, output: torch.Tensor) -> None:
        longest = max(len(word) for word in self.bad_words)
        tail = output[-(longest - 1) :].tolist() if longest > 1 else []
        ends = [word[-1] for word in self.bad_words if len(word) == 1 or tail[1 - len(word) :] == word[:-1]]
        if ends:
            self._ban(logits_V, torch.tensor(ends, device=logits_V.device))

    def _ban(self, logits_V: torch.Tensor, banned_ids: torch.Tensor) -> None:
        kept = logits_V[banned_ids]
        logits_V[banned_ids] = float("-inf")
        if bool((logits_V == float("-inf")).all()):  # nothing else is allowed, and there must be one to sample
            logits_V[banned_ids] = kept
