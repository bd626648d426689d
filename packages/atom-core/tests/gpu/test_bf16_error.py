"""On a GPU: in bfloat16 every family is as near to its float32 logits as `transformers` is in bfloat16 there.

Sparse attention reads the few tokens that an index chooses. In bfloat16 half of the positions of a tiny model choose
another token somewhere, and their logits are then off by several times what rounding leaves: a median would say whose
half is the smaller one. So all models attend to what the float32 model chooses, and choices are judged by themselves.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers

from atom_models import load_model, supported_architectures
from atom_models.layers import LightningIndex
from atom_models.paged_run import PagedRun, SequenceStep
from tiny_architectures import families, reference_model

pytestmark = pytest.mark.gpu

NUM_SEQUENCES, PROMPT, DECODED = 16, 110, 40
BLOCK_SIZE = 16
# A median over so many positions still moves by about this much from one draw of tokens to the next.
SLACK = 1.03
WITH_INDEX = ("deepseek_v32", "glm_moe_dsa")

Choices = list[torch.Tensor]
"""What each index chooses, in order: int64 positions ``[sequences, tokens, top_k]``, -1 in the place of none."""


@pytest.mark.parametrize("family", families(supported_architectures()))
def test_bfloat16_errs_no_more_than_transformers(family: str, tiny_family: Callable[[str], Path]) -> None:
    folder, sequences = tiny_family(family), random_sequences()
    exact, chosen = logits_of(reference_model(folder).cuda(), sequences)
    theirs = load_theirs(folder).cuda()
    expected = errors(logits_of(theirs, sequences, chosen)[0], exact)
    found = errors(our_logits(folder, sequences, "cuda", chosen)[0], exact)
    # Medians, since an expert that is chosen the other way near a tie outweighs all other errors, and may on any side.
    ratio = (found.median() / expected.median()).item()
    print(f"{family}: {ratio:.3f} of the error of transformers (means {(found.mean() / expected.mean()).item():.3f})")
    assert found.isfinite().all()
    assert ratio <= SLACK


@pytest.mark.parametrize("family", WITH_INDEX)
def test_an_index_in_bfloat16_chooses_no_other_keys_more_often_than_transformers(
    family: str, tiny_family: Callable[[str], Path]
) -> None:
    """The first layer's, before which nothing was chosen. So rare an event is counted up to the root of the count."""
    folder, sequences = tiny_family(family), random_sequences()
    exact = logits_of(reference_model(folder).cuda(), sequences)[1][0]
    expected = num_others(logits_of(load_theirs(folder).cuda(), sequences)[1][0], exact)
    found = num_others(our_logits(folder, sequences, "cuda")[1][0], exact)
    print(f"{family}: {found} other keys, and {expected} of transformers, of {exact.numel()}")
    assert 0 < found <= expected + 2 * expected**0.5


def random_sequences(seed: int = 5) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 384) for _ in range(PROMPT + DECODED)] for _ in range(NUM_SEQUENCES)]


def load_theirs(folder: Path) -> Any:
    """The model of `transformers` in bfloat16."""
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder / "transformers", dtype=torch.bfloat16).eval()


def logits_of(model: Any, sequences: list[list[int]], forced: Choices | None = None) -> tuple[torch.Tensor, Choices]:
    """Float64 ``[sequences, tokens, vocabulary]`` of a model of `transformers`, and what its indices choose.

    Args:
        forced: what they choose instead.
    """
    indices = [module for module in model.modules() if type(module).__name__.endswith("Indexer")]
    found: Choices = []

    def choose(place: int, output: torch.Tensor) -> torch.Tensor:
        past = torch.arange(output.shape[1], device=output.device)[:, None]
        found.append(torch.where(output <= past, output, -1).long())
        if forced is None:
            return output
        # Its attention leaves out what comes later, as the float32 model's did.
        return torch.where(forced[place] < 0, output.shape[1] - 1, forced[place]).to(output.dtype)

    with torch.inference_mode(), hooked(indices, choose):
        tokens = torch.tensor(sequences, device=model.device)
        return model(tokens).logits.double(), found


def our_logits(
    folder: Path, sequences: list[list[int]], device: str, forced: Choices | None = None
) -> tuple[torch.Tensor, Choices]:
    """The same of ours in bfloat16: prompts, then tokens one at a time, so that the kernels of both take part."""
    model: Any = load_model(folder, torch.bfloat16, progress=False, block_size=BLOCK_SIZE).model
    indices = [module for module in model.modules() if isinstance(module, LightningIndex)]
    width = -(-len(sequences[0]) // BLOCK_SIZE)
    blocks = [range(index * width, (index + 1) * width) for index in range(len(sequences))]
    run: Any = PagedRun(model, len(sequences) * width, device, num_slots=len(sequences))
    parts: list[Choices] = []

    def step(start: int, end: int) -> torch.Tensor:
        found: Choices = []

        def choose(place: int, output: torch.Tensor) -> torch.Tensor:
            found.append(output.view(len(sequences), end - start, -1).long())
            if forced is None:
                return output
            # Ascending, and -1 behind the last.
            late = torch.where(forced[place] < 0, 1 << 30, forced[place])[:, start:end].sort().values
            return torch.where(late == 1 << 30, -1, late).view(output.shape).to(output.dtype)

        steps = [
            SequenceStep(tokens[start:end], start, blocks[index], slot=index) for index, tokens in enumerate(sequences)
        ]
        with torch.inference_mode(), hooked(indices, choose):
            logits = torch.stack([model.compute_logits(hidden) for hidden in run.step(steps)]).double()
        parts.append(found)
        return logits

    logits = [step(0, PROMPT), *(step(place, place + 1) for place in range(PROMPT, PROMPT + DECODED))]
    return torch.cat(logits, dim=1), [torch.cat(of_index, dim=1) for of_index in zip(*parts, strict=True)]


@contextlib.contextmanager
def hooked(modules: Sequence[torch.nn.Module], change: Callable[[int, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within, what the modules give goes through ``change(place of the module, output)``."""

    def hook_of(place: int) -> Callable[..., torch.Tensor]:
        return lambda module, inputs, output: change(place, output)

    hooks = [module.register_forward_hook(hook_of(place)) for place, module in enumerate(modules)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def num_others(chosen: torch.Tensor, exact: torch.Tensor) -> int:
    """Keys that are not among those of `exact`; -1 is none."""
    is_other = (chosen[..., :, None] != exact[..., None, :]).all(dim=-1) & (chosen >= 0)
    return int(is_other.sum())


def errors(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Norm of the error at each position."""
    return (logits - exact).norm(dim=-1).flatten()
