"""The trial of a class: packed sequences under our attention must get what transformers gives each of them alone.

It runs in float32 on a small model of the class, with random weights and windows shorter than its sequences, before
the first checkpoint of that kind is loaded.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.platform import detect_platform
from atom_models.build_context import BuildContext
from atom_models.fallback.admission import FallbackRefusedError, refuse, refuse_pictures
from atom_models.fallback.model import TransformersForCausalLM
from atom_models.fallback.skeleton import auto_class, read_fields
from atom_models.fallback.small_config import PATCHES_OF_SIDE, small_fields
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.vision.placing import place_pictures
from atom_models.weights import load_named_weights

if TYPE_CHECKING:
    from atom_models.vision.spec import VisionSpec

# The largest difference, as a share of the range of the logits.
TOLERANCE = 1e-4
_LENGTHS = (1, 7, 19)
# By the sequence: where its pictures are. The second one of the last sequence is cut in two.
_PICTURES = ((1, (3,)), (2, (4, 7)))
# Tokens of the longest sequence that a first step computes: the second one goes on from the cache. In the second step
# its row is not its position: rotations are relative, and would not show that a model counts rows.
_CUT = 11
_BLOCK_SIZE = 16
# A small model has no more: in float32 they take a quarter of a gigabyte.
_MOST_PARAMETERS = 64_000_000


def check_trial(model_type: str, fields: dict[str, Any], spec: VisionSpec | None = None) -> None:
    """Tries a small model of the class with the config's fields; once for each kind of config in a process.

    Args:
        spec: which pictures the model sees: some of the sequences have any; None where it reads text alone.

    Raises:
        FallbackRefusedError: packed sequences get other logits than each of them alone, or the trial cannot be run.
    """
    reason = _trial(model_type, json.dumps(small_fields(fields), sort_keys=True), spec)
    if reason is not None:
        raise refuse(model_type, reason) if spec is None else refuse_pictures(model_type, reason)


@functools.cache
def _trial(model_type: str, fields: str, spec: VisionSpec | None) -> str | None:
    """Why a class does not pass; None if it does."""
    try:
        config = read_fields(model_type, json.loads(fields))
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            return _compare(config, read_fields(model_type, json.loads(fields)), spec)
    except FallbackRefusedError as error:
        return f"a small model of it was refused ({error})"
    except Exception as error:
        return f"a small model of it does not run ({type(error).__name__}: {error})"


def _compare(config: Any, config_of_ours: Any, spec: VisionSpec | None) -> str | None:
    from transformers.core_model_loading import revert_weight_conversion

    platform = detect_platform()
    context = BuildContext(
        platform=platform, dtype=torch.float32, device=platform.device, block_size=_BLOCK_SIZE, max_model_len=64
    )
    # Ours goes first: it holds no memory until weights come, and refuses most of what would not pass.
    ours: Any = TransformersForCausalLM(config_of_ours, context, spec and _small_spec(spec, config)).eval()
    if (reason := _too_large(ours)) is not None:
        return reason
    theirs = auto_class(config).from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for parameter in theirs.parameters():
        # Larger than a fresh model's, so that what attention does shows in the logits.
        if parameter.dim() > 1:
            parameter.normal_(0, 0.08)
    expected = {name for group in loadable(ours) for name in expected_weights(group)}
    tensors = revert_weight_conversion(theirs, dict(theirs.state_dict()))
    theirs = theirs.to(platform.device)
    load_named_weights(ours, ((name, tensors[name]) for name in expected), "the trial")
    steps, pictures = _prompts(ours)
    for index, (rows, step) in enumerate(zip(_packed(ours, steps, platform.device), steps, strict=True)):
        given = ours.vision.given(pictures[index]) if pictures[index] else {}
        ids = torch.tensor([step.token_ids], device=platform.device)
        logits = theirs(input_ids=ids, **given, use_cache=False).logits[0].float()
        off = float((ours.compute_logits(rows) - logits).abs().max() / (logits.max() - logits.min()))
        if not off <= TOLERANCE:
            return (
                f"in a trial, packed sequence {index} of {len(steps)} got logits {off:.1e} of their range away from "
                f"those that it gets alone (at most {TOLERANCE:.0e} may be)"
            )
    return None


def _small_spec(spec: VisionSpec, config: Any) -> VisionSpec:
    side = PATCHES_OF_SIDE * spec.patch_size
    token = config.get_text_config().vocab_size - 1
    return replace(spec, image_token_id=token, max_side=side, min_pixels=side**2, max_pixels=side**2)


def _prompts(model: Any) -> tuple[list[SequenceStep], list[list[torch.Tensor]]]:
    """Sequences without blocks, and the pictures of each, which the tower has seen together."""
    draw, spec = torch.Generator().manual_seed(1), model.vision_spec
    end = model.config.get_text_config().vocab_size - (spec is not None)
    prompts = [torch.randint(2, end, (length,), generator=draw).tolist() for length in _LENGTHS]
    pictures: list[list[torch.Tensor]] = [[] for _ in prompts]
    if spec is None:
        return [SequenceStep(prompt, 0, ()) for prompt in prompts], pictures
    side = spec.max_side
    for index, places in _PICTURES:
        for place, height in zip(places, (side // 2, side), strict=False):
            prompts[index][place] = spec.image_token_id
            size = (*spec.fitted(height, side), 3)
            pictures[index].append(torch.randint(256, size, generator=draw, dtype=torch.uint8))
    return place_pictures(model, prompts, pictures), pictures


def _too_large(model: Any) -> str | None:
    """Why a trial would take the memory of a whole model, where the class has names of its own for sizes."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters <= _MOST_PARAMETERS:
        return None
    return (
        f"a small model of it has {num_parameters:,} parameters (at most {_MOST_PARAMETERS:,} may be): its config has "
        "sizes under names that are unknown here"
    )


def _packed(model: Any, prompts: list[SequenceStep], device: str) -> list[torch.Tensor]:
    """Hidden states of all prompts in one batch, of which the last one comes in two steps."""
    run = PagedRun(model, 2 * len(prompts), device)
    steps = [replace(one, block_ids=range(2 * index, 2 * index + 2)) for index, one in enumerate(prompts)]
    [begun] = run.step([_part(steps[-1], 0, _CUT)])
    *whole, rest = run.step([*steps[:-1], _part(steps[-1], _CUT, len(steps[-1].token_ids))])
    return [*whole, torch.cat((begun, rest))]


def _part(step: SequenceStep, first: int, last: int) -> SequenceStep:
    seen = None if step.seen is None else step.seen.between(first, last)
    return replace(step, token_ids=step.token_ids[first:last], num_cached=first, seen=seen)
