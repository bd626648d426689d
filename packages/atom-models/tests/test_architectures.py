"""Every family = transformers, in float32, on tiny random checkpoints in the spelling that publishers use."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from atom_models import (
    CheckpointError,
    LoadedModel,
    UnsupportedArchitectureError,
    build_model,
    describe_architecture,
    load_model,
    load_weights,
    mixer_layers,
    open_checkpoint,
    supported_architectures,
)
from atom_models.architectures.registry import is_encoder
from atom_models.paged_run import PagedRun, SequenceStep
from tiny_architectures import FAMILIES, PAST_EVERY_WINDOW, families, reference_model
from tiny_models import write_weights

pytestmark = pytest.mark.usefixtures("quiet_transformers")

LENGTHS = (7, 1, 33, PAST_EVERY_WINDOW, 1, 16)
HERE = families(supported_architectures())


@dataclass(frozen=True)
class Tiny:
    """A tiny checkpoint, our model of it, and what transformers says about prompts of odd lengths."""

    family: str
    folder: Path
    loaded: LoadedModel
    prompts: list[list[int]]
    expected: list[torch.Tensor]


def make_prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=HERE)
def tiny(request: pytest.FixtureRequest, tiny_family: Callable[[str], Path]) -> Tiny:
    folder, prompts = tiny_family(request.param), make_prompts(*LENGTHS)
    theirs = reference_model(folder)
    with torch.inference_mode():
        expected = [theirs(torch.tensor([prompt])).logits[0] for prompt in prompts]
    return Tiny(request.param, folder, load_model(folder, progress=False), prompts, expected)


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == torch.float32
        assert actual.shape == expected.shape
        assert (actual - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


def test_a_ragged_batch_gives_the_logits_of_transformers(tiny: Tiny):
    assert_close(tiny.loaded.logits(tiny.prompts), tiny.expected)


def test_a_prompt_alone_gives_the_logits_of_transformers(tiny: Tiny):
    for prompt, expected in zip(tiny.prompts[:4], tiny.expected, strict=False):
        assert_close(tiny.loaded.logits([prompt]), [expected])


def test_chunks_and_single_tokens_through_the_cache_give_the_same_logits(tiny: Tiny):
    tokens, expected = tiny.prompts[3], tiny.expected[3]
    run = PagedRun(tiny.loaded.model, 16)
    bounds = [*range(0, 63, 7), 64, 100, *range(101, len(tokens)), len(tokens)]
    parts = []
    for start, end in itertools.pairwise(bounds):
        parts += run.step([SequenceStep(tokens[start:end], start, range(16))])
    with torch.inference_mode():
        logits = tiny.loaded.model.compute_logits(torch.cat(parts))  # type: ignore[operator]
    assert_close([logits], [expected])


def test_the_spelling_of_transformers_itself_gives_the_same_model(tiny: Tiny):
    other = load_model(tiny.folder / "transformers", progress=False)
    for ours, published in zip(other.logits(tiny.prompts), tiny.loaded.logits(tiny.prompts), strict=True):
        assert torch.equal(ours, published)


def test_shards_give_the_same_model_as_one_file(tiny: Tiny, tmp_path: Path):
    shutil.copy(tiny.folder / "config.json", tmp_path)
    write_weights(tmp_path, load_file(tiny.folder / "model.safetensors"), num_shards=3)
    other = load_model(tmp_path, progress=False)
    assert torch.equal(other.logits(tiny.prompts[:1])[0], tiny.loaded.logits(tiny.prompts[:1])[0])


def test_a_tensor_that_is_missing_is_named(tiny: Tiny, tmp_path: Path):
    weights = load_file(tiny.folder / "model.safetensors")
    missing = sorted(name for name in weights if ".layers.1." in name)
    for name in (missing[0], missing[len(missing) // 2], missing[-1]):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(tiny.folder / "config.json", folder)
        write_weights(folder, {key: value for key, value in weights.items() if key != name})
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            load_model(folder, progress=False)


def test_a_tensor_that_nothing_takes_is_named(tiny: Tiny, tmp_path: Path):
    weights = load_file(tiny.folder / "model.safetensors")
    decoder = tiny.loaded.model.decoder_prefix
    weights[f"{decoder}.layers.0.self_attn.surplus.weight"] = weights[f"{decoder}.norm.weight"]
    shutil.copy(tiny.folder / "config.json", tmp_path)
    write_weights(tmp_path, weights)
    with pytest.raises(ValueError, match=r"\.layers\.0\.self_attn\.surplus\.weight"):
        load_model(tmp_path, progress=False)


def test_outputs_of_layers_that_a_drafter_asks_for_are_those_of_transformers(tiny: Tiny):
    theirs, [prompt] = reference_model(tiny.folder), make_prompts(40)
    layer_ids = tuple(range(theirs.config.num_hidden_layers))
    context = replace(tiny.loaded.context, aux_hidden_states=layer_ids)
    model = build_model(tiny.loaded.checkpoint, context)
    load_weights(model, tiny.loaded.checkpoint, progress=False)
    given = []
    model.register_forward_hook(lambda module, inputs, outputs: given.append(outputs))
    PagedRun(model, 3).step([SequenceStep(prompt, 0, range(3))])
    with torch.inference_mode():
        # Theirs lists what enters each layer, and then what the last norm gives.
        _, *entering, normed = theirs(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    [(hidden_states, aux)] = given
    assert len(aux) == len(layer_ids)
    assert_close([*aux[:-1], hidden_states], [each[0] for each in (*entering, normed)])
    last = model.model.norm(aux[-1])  # type: ignore[operator, union-attr]
    assert_close([last], [normed[0]])


def test_an_output_of_a_layer_that_there_is_not_is_refused(tiny: Tiny):
    context = replace(tiny.loaded.context, aux_hidden_states=(0, 4))
    with pytest.raises(
        CheckpointError, match=r"aux_hidden_states asks for the output of layer 4; .* layers 0 to [1-3]$"
    ):
        build_model(tiny.loaded.checkpoint, context)


def test_each_cache_takes_the_bytes_that_its_layout_says(tiny: Tiny):
    for layer in mixer_layers(tiny.loaded.model).values():
        assert layer.plan is not None
        layout = layer.plan.layout
        assert layout == layer.problem.layout
        allocated = sum(tensor.nbytes for tensor in layout.allocate(3))
        assert allocated == 3 * layout.block_bytes


def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(tiny: Tiny):
    ours = load_model(tiny.folder, dtype="bfloat16", progress=False).logits(tiny.prompts)
    theirs = reference_model(tiny.folder).to(torch.bfloat16)
    our_error, their_error = 0.0, 0.0
    for prompt, logits, expected in zip(tiny.prompts, ours, tiny.expected, strict=True):
        with torch.inference_mode():
            other = theirs(torch.tensor([prompt])).logits[0].float()
        our_error += float((logits - expected).abs().mean())
        their_error += float((other - expected).abs().mean())
    assert our_error <= 1.5 * their_error


def test_a_config_of_a_publisher_needs_no_code_of_theirs(tiny_family: Callable[[str], Path]):
    config = json.loads((tiny_family("kimi_k2") / "config.json").read_text())
    assert config["auto_map"]
    assert open_checkpoint(tiny_family("kimi_k2")).model_type == "kimi_k2"
    assert load_model(tiny_family("kimi_k2"), progress=False).logits([[5, 6, 7]])[0].shape == (3, 384)


def test_every_supported_architecture_has_a_tiny_family_and_every_family_is_supported():
    decoders = {name for name in supported_architectures() if not is_encoder(name)}
    assert {family.architecture for family in FAMILIES.values()} == decoders - {"Qwen3ForSequenceClassification"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Qwen3xForCausalLM", "Qwen3ForCausalLM"),
        ("Gemma4ForConditionalGeneration", "Gemma3ForConditionalGeneration"),
        ("Ministral4ForCausalLM", "Ministral3ForCausalLM"),
        ("Llama4ForConditionalGeneration", "LlamaForCausalLM"),
        ("Phi3ForCausalLM", None),
        ("T5EncoderModel", None),
    ],
)
def test_an_unknown_architecture_names_all_that_are_known_and_the_nearest(name: str, nearest: str | None):
    with pytest.raises(UnsupportedArchitectureError) as caught:
        describe_architecture(name)
    message = str(caught.value)
    assert all(known in message for known in supported_architectures())
    assert message.endswith(f"The nearest is {nearest}.") if nearest else "nearest" not in message
