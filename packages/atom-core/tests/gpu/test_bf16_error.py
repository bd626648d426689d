"""On a GPU: in bfloat16 every family is as near to its float32 logits as `transformers` is in bfloat16 there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers

from atom_models import load_model, supported_architectures
from atom_models.paged_run import PagedRun, SequenceStep
from tiny_architectures import families, reference_model

pytestmark = pytest.mark.gpu

NUM_SEQUENCES, PROMPT, DECODED = 16, 110, 40
BLOCK_SIZE = 16
# A median over so many positions still moves by about this much from one draw of tokens to the next.
SLACK = 1.03


@pytest.mark.parametrize("family", families(supported_architectures()))
def test_bfloat16_errs_no_more_than_transformers(family: str, tiny_family: Callable[[str], Path]) -> None:
    folder, sequences = tiny_family(family), random_sequences()
    exact = logits_of(reference_model(folder), sequences)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "transformers", dtype=torch.bfloat16)
    expected = errors(logits_of(theirs.eval(), sequences), exact)
    found = errors(our_logits(folder, sequences), exact)
    # Medians, since an expert that is chosen the other way near a tie outweighs all other errors, and may on any side.
    ratio = (found.median() / expected.median()).item()
    print(f"{family}: {ratio:.3f} of the error of transformers (means {(found.mean() / expected.mean()).item():.3f})")
    assert found.isfinite().all()
    assert ratio <= SLACK


def random_sequences() -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(PROMPT + DECODED)] for _ in range(NUM_SEQUENCES)]


def logits_of(model: Any, sequences: list[list[int]]) -> torch.Tensor:
    """Float64 ``[sequences, tokens, vocabulary]`` of a model of `transformers`."""
    with torch.inference_mode():
        return model.cuda()(torch.tensor(sequences, device="cuda")).logits.double()


def our_logits(folder: Path, sequences: list[list[int]]) -> torch.Tensor:
    """The same of ours in bfloat16: prompts, then tokens one at a time, so that the kernels of both take part."""
    model: Any = load_model(folder, torch.bfloat16, progress=False, block_size=BLOCK_SIZE).model
    width = -(-len(sequences[0]) // BLOCK_SIZE)
    blocks = [range(index * width, (index + 1) * width) for index in range(len(sequences))]
    run = PagedRun(model, len(sequences) * width, "cuda", num_slots=len(sequences))

    def step(start: int, end: int) -> torch.Tensor:
        steps = [
            SequenceStep(tokens[start:end], start, blocks[index], slot=index) for index, tokens in enumerate(sequences)
        ]
        with torch.inference_mode():
            return torch.stack([model.compute_logits(hidden) for hidden in run.step(steps)]).double()

    prompts = step(0, PROMPT)
    return torch.cat([prompts, *(step(place, place + 1) for place in range(PROMPT, PROMPT + DECODED))], dim=1)


def errors(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Norm of the error at each position."""
    return (logits - exact).norm(dim=-1).flatten()
