"""How far a model strays from another one on a text: perplexity, divergence and agreement, token by token.

Both models read the same tokens ("teacher forced"), in windows that begin anew, and are compared by what they expect
after each token.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from atom_models.loaded_model import LoadedModel

# Rows of logits that are compared at once: their float32 copies are the largest tensors here.
_ROWS = 128


class AccuracyError(ValueError):
    """The text or the models cannot be compared; the message says why."""


@dataclass(frozen=True)
class Accuracy:
    """What a model says of a text, against a baseline.

    Attributes:
        perplexity: e to the mean of the negative log-probability that each next token was given.
        kl_divergence: KL(baseline || model) of what both expect next: mean over tokens, in nats.
        top1_agreement: the share of tokens after which both expect the same one most.
    """

    perplexity: float
    kl_divergence: float
    top1_agreement: float


def windows_of(token_ids: Sequence[int], size: int, first_ids: Sequence[int] = ()) -> list[list[int]]:
    """The text in windows of `size` tokens; what is left over at the end is a shorter one.

    Args:
        first_ids: what each window begins with, such as the tokenizer's mark for the beginning of a text.

    Raises:
        AccuracyError: the text does not fill one window, or a window has no room.
    """
    room = size - len(first_ids)
    if room < 2:
        raise AccuracyError(f"a window of {size} tokens is too small: take at least {2 + len(first_ids)}")
    if len(token_ids) < room:
        raise AccuracyError(
            f"the text has {len(token_ids)} tokens and fills no window of {size}: take a longer text or smaller windows"
        )
    windows = [[*first_ids, *token_ids[start : start + room]] for start in range(0, len(token_ids), room)]
    return [window for window in windows if len(window) > 1]


class ReferenceModel:
    """The model that others are compared with, and what it computed of a text.

    Its hidden states are kept instead of its logits, which may be a thousand times as large.

    Attributes:
        perplexity: its own.
        num_tokens: how many tokens of the text each model gives a probability.
    """

    def __init__(self, model: LoadedModel, windows: Sequence[Sequence[int]], progress: bool = True) -> None:
        self._model, self._windows = model, windows
        self._hidden_states = list(_hidden_states(model, windows, "Baseline", progress))
        self.num_tokens = sum(len(window) - 1 for window in windows)
        self.perplexity = self._compare(model, self._hidden_states).perplexity

    def measure(self, model: LoadedModel, name: str, progress: bool = True) -> Accuracy:
        """What `model` says of the same tokens; `name` stands before the progress bar.

        Raises:
            AccuracyError: its vocabulary is another one.
        """
        sizes = [each.checkpoint.text_config.get("vocab_size") for each in (self._model, model)]
        if sizes[0] != sizes[1]:
            raise AccuracyError(f"{name} has a vocabulary of {sizes[1]} tokens, and the baseline one of {sizes[0]}")
        return self._compare(model, _hidden_states(model, self._windows, name, progress))

    def _compare(self, model: LoadedModel, hidden_states: Iterable[torch.Tensor]) -> Accuracy:
        surprise = divergence = agreeing = 0.0
        for window, plain_TD, other_TD in zip(self._windows, self._hidden_states, hidden_states, strict=True):
            next_ids_T = torch.tensor(window[1:], device=plain_TD.device)
            for start in range(0, len(next_ids_T), _ROWS):
                rows = slice(start, min(start + _ROWS, len(next_ids_T)))
                plain_TV = self._model.logits_of(plain_TD[rows]).log_softmax(-1)
                other_TV = model.logits_of(other_TD[rows]).log_softmax(-1)
                surprise -= float(other_TV.gather(1, next_ids_T[rows, None]).double().sum())
                divergence += float((plain_TV.exp() * (plain_TV - other_TV)).sum(-1).double().sum())
                agreeing += int((plain_TV.argmax(-1) == other_TV.argmax(-1)).sum())
        count = self.num_tokens
        return Accuracy(math.exp(surprise / count), divergence / count, agreeing / count)


def _hidden_states(
    model: LoadedModel, windows: Sequence[Sequence[int]], name: str, progress: bool
) -> Iterator[torch.Tensor]:
    hidden = not (progress and sys.stderr.isatty())
    for window in tqdm(windows, desc=name, unit="window", disable=hidden, leave=False):
        yield from model.hidden_states([window])
