"""The trial of a class: packed sequences under our attention must get what transformers gives each of them alone.

It runs in float32 on a small model of the class, with random weights and windows shorter than its sequences, before
the first checkpoint of that kind is loaded.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

from atom_kernels.platform import detect_platform
from atom_models.build_context import BuildContext
from atom_models.fallback.admission import FallbackRefusedError, refuse
from atom_models.fallback.model import TransformersForCausalLM
from atom_models.fallback.skeleton import read_fields
from atom_models.fallback.small_config import small_fields
from atom_models.layers.loadable import expected_weights
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.weights import load_named_weights

# The largest difference, as a share of the range of the logits.
TOLERANCE = 1e-4
_LENGTHS = (1, 7, 19)
# Tokens of the longest sequence that a first step computes: the second one goes on from the cache. In the second step
# its row is not its position: rotations are relative, and would not show that a model counts rows.
_CUT = 11
_BLOCK_SIZE = 16
# A small model has no more: in float32 they take a quarter of a gigabyte.
_MOST_PARAMETERS = 64_000_000


def check_trial(model_type: str, fields: dict[str, Any]) -> None:
    """Tries a small model of the class with the config's fields; once for each kind of config in a process.

    Raises:
        FallbackRefusedError: packed sequences get other logits than each of them alone, or the trial cannot be run.
    """
    reason = _trial(model_type, json.dumps(small_fields(fields), sort_keys=True))
    if reason is not None:
        raise refuse(model_type, reason)


@functools.cache
def _trial(model_type: str, fields: str) -> str | None:
    """Why a class does not pass; None if it does."""
    try:
        config = read_fields(model_type, json.loads(fields))
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            return _compare(config, read_fields(model_type, json.loads(fields)))
    except FallbackRefusedError as error:
        return f"a small model of it was refused ({error})"
    except Exception as error:
        return f"a small model of it does not run ({type(error).__name__}: {error})"


def _compare(config: Any, config_of_ours: Any) -> str | None:
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    platform = detect_platform()
    context = BuildContext(
        platform=platform, dtype=torch.float32, device=platform.device, block_size=_BLOCK_SIZE, max_model_len=64
    )
    # Ours goes first: it holds no memory until weights come, and refuses most of what would not pass.
    ours: Any = TransformersForCausalLM(config_of_ours, context).eval()
    if (reason := _too_large(ours)) is not None:
        return reason
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for parameter in theirs.parameters():
        # Larger than a fresh model's, so that what attention does shows in the logits.
        if parameter.dim() > 1:
            parameter.normal_(0, 0.08)
    expected = {name for group in ours.weights for name in expected_weights(group)}
    tensors = revert_weight_conversion(theirs, dict(theirs.state_dict()))
    theirs = theirs.to(platform.device)
    load_named_weights(ours, ((name, tensors[name]) for name in expected), "the trial")
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, config.vocab_size, (length,), generator=draw).tolist() for length in _LENGTHS]
    for index, (rows, prompt) in enumerate(zip(_packed(ours, prompts, platform.device), prompts, strict=True)):
        logits = theirs(torch.tensor([prompt], device=platform.device), use_cache=False).logits[0].float()
        off = float((ours.compute_logits(rows) - logits).abs().max() / (logits.max() - logits.min()))
        if not off <= TOLERANCE:
            return (
                f"in a trial, packed sequence {index} of {len(prompts)} got logits {off:.1e} of their range away from "
                f"those that it gets alone (at most {TOLERANCE:.0e} may be)"
            )
    return None


def _too_large(model: Any) -> str | None:
    """Why a trial would take the memory of a whole model, where the class has names of its own for sizes."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters <= _MOST_PARAMETERS:
        return None
    return (
        f"a small model of it has {num_parameters:,} parameters (at most {_MOST_PARAMETERS:,} may be): its config has "
        "sizes under names that are unknown here"
    )


def _packed(model: Any, prompts: list[list[int]], device: str) -> list[torch.Tensor]:
    """Hidden states of all prompts in one batch, of which the last one comes in two steps."""
    run = PagedRun(model, 2 * len(prompts), device)
    blocks = [range(2 * index, 2 * index + 2) for index in range(len(prompts))]
    [begun] = run.step([SequenceStep(prompts[-1][:_CUT], 0, blocks[-1])])
    steps = [SequenceStep(prompt, 0, ids) for prompt, ids in zip(prompts[:-1], blocks, strict=False)]
    *whole, rest = run.step([*steps, SequenceStep(prompts[-1][_CUT:], _CUT, blocks[-1])])
    return [*whole, torch.cat((begun, rest))]
