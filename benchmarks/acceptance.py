"""How often drafts are right: by the race, by the inverse of the distribution, and by rejection sampling."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report, tables
from benchmarks.speculation import TEXTS

if TYPE_CHECKING:
    import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks acceptance`."""
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 1.0, 2.0])
    parser.add_argument("--num-positions", type=int, default=64, help="places of the text that are drafted")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print and save the share of right drafts for each draft model and temperature, by each rule."""
    import torch

    from atom_models.loaded_model import load_model

    target = load_model(options.model, "float32", progress=False)
    shorter = {}
    for number in (1, 3):
        shorter[f"{number} of its layers less"] = draft = load_model(options.model, "float32", progress=False)
        decoder: Any = draft.model.model
        decoder.layers = decoder.layers[:-number]
    results = []
    for text in TEXTS:
        torch.manual_seed(0)
        token_ids = _written_by(target, TEXTS[text], options.num_positions)
        target_nV = _of_last(target, token_ids, options.num_positions)
        drafts = {name: _of_last(draft, token_ids, options.num_positions) for name, draft in shorter.items()}
        for temperature in options.temperatures:
            found = {name: compare(target_nV, draft_nV, temperature) for name, draft_nV in drafts.items()}
            found["n-grams"] = ngrams(target_nV, token_ids, temperature)
            for name, shares in found.items():
                results.append({"text": text, "draft": name, "temperature": temperature} | shares)
                print(" | ".join(tables.acceptance_row(results[-1])), flush=True)
    document = {
        "benchmark": "acceptance",
        "machine": machine.describe(options.commit),
        "settings": {
            "model": options.model,
            "num_positions": options.num_positions,
        },
        "results": results,
    }
    report.save_unless_doubtful(document, options)
    return 0


def compare(target_nV: torch.Tensor, draft_nV: torch.Tensor, temperature: float) -> dict[str, float]:
    """The probability that a draft is right, a mean over places, from the logits of both models.

    A greedy draft is right as often by every rule that draws from the target's distribution. The others are drawn, by
    the numbers that the target's token is drawn by, or, for rejection sampling, by their own.
    """
    import torch

    p_nV, q_nV = (torch.softmax(logits.double() / temperature, dim=-1) for logits in (target_nV, draft_nV))
    p_ends, q_ends = p_nV.cumsum(-1), q_nV.cumsum(-1)
    # Where one number lies in the interval of the same token in both.
    overlap_nV = torch.minimum(p_ends, q_ends) - torch.maximum(p_ends - p_nV, q_ends - q_nV)
    shares = (
        p_nV.gather(1, q_nV.argmax(1, keepdim=True)),
        overlap_nV.clamp_min(0).sum(-1),
        race(p_nV, q_nV),
        torch.minimum(p_nV, q_nV).sum(-1),
    )
    return {rule: float(share.mean()) for rule, share in zip(tables.ACCEPTANCE_RULES, shares, strict=True)}


def race(p_nV: torch.Tensor, q_nV: torch.Tensor) -> torch.Tensor:
    """How often the first of all tokens is one in both distributions, where tokens arrive at E / p and at E / q.

    The exponential variates E are shared. Token i is the first in both if no other one comes before it in either, so
    with probability ``1 / sum_j max(p_j / p_i, q_j / q_i)`` (Daliri et al., arXiv 2408.07978). In the order of q / p
    the sum is of p over the tokens up to i, and of q behind it.
    """
    order_nV = (q_nV / p_nV).argsort(dim=-1)
    p_nV, q_nV = p_nV.gather(1, order_nV), q_nV.gather(1, order_nV)
    return (
        (1 / (p_nV.cumsum(-1) / p_nV + (q_nV.sum(-1, keepdim=True) - q_nV.cumsum(-1)) / q_nV)).nan_to_num(0.0).sum(-1)
    )


def ngrams(target_nV: torch.Tensor, token_ids: list[int], temperature: float) -> dict[str, float]:
    """A draft by the request's own tokens has a probability of 1, so that it is right as often by every rule."""
    import torch

    from atom_core.speculation.ngram import NgramDrafter

    drafter, first = NgramDrafter(2, 5), len(token_ids) - len(target_nV)
    p_nV, right = torch.softmax(target_nV.double() / temperature, dim=-1), []
    for place in range(len(target_nV)):
        drafted = drafter.propose(token_ids[: first + place], 1).token_ids
        right += [float(p_nV[place, token]) for token in drafted]
    return {name: sum(right) / max(len(right), 1) for name in tables.ACCEPTANCE_RULES} | {"num_drafts": len(right)}


def _written_by(target: Any, text: str, num_positions: int) -> list[int]:
    """A prompt, and what the model goes on with at temperature 1: drafts are made of what it writes itself."""
    import torch

    from atom_core.tokenization import Tokenizer

    token_ids = list(Tokenizer.of_model(target.checkpoint, None).encode(text))
    for _ in range(num_positions):
        logits_V = target.logits([token_ids])[0][-1]
        token_ids.append(int(torch.multinomial(torch.softmax(logits_V, 0), 1)))
    return token_ids


def _of_last(model: Any, token_ids: list[int], num_positions: int) -> torch.Tensor:
    """What a model expects in the place of each of the last tokens: logits ``[num_positions, V]``."""
    return model.logits([token_ids[:-1]])[0][-num_positions:]
