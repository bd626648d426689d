"""Prediction layers = transformers' in float32: logits of every position, for ragged batches, through a paged cache."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from atom_models import (
    BuildContext,
    CheckpointError,
    LoadedModel,
    build_model,
    load_dummy_weights,
    load_model,
    mixer_layers,
    open_checkpoint,
)
from atom_models.drafting import build_draft, choose_draft, prediction_layers
from atom_models.layers.loadable import loadable
from atom_models.paged_run import PagedRun, SequenceStep
from converted_gguf import write_gguf
from draft_runs import Drafting, draft_logits, load_both
from quantized_checkpoints import PUBLISHED, write_quantized
from tiny_architectures import PAST_EVERY_WINDOW, reference_model
from tiny_drafts import TinyCycle, make_agreeing, make_predicting, rewrite_config, rewrite_weights
from tiny_models import write_weights

pytestmark = pytest.mark.usefixtures("quiet_transformers")

FAMILIES = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")
LENGTHS = (2, 8, 34, PAST_EVERY_WINDOW, 17)


@dataclass(frozen=True)
class Tiny:
    """A target with its draft, and texts with the draft's logits of transformers: those of the token after the next."""

    folder: Path
    loaded: LoadedModel
    draft: Any
    texts: list[list[int]]
    expected: list[torch.Tensor]


def make_texts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


def their_layers(folder: Path, count: int) -> tuple[Any, MtpModel]:
    """The model of transformers, and what it makes of the prediction layers of the same checkpoint."""
    theirs = reference_model(folder)
    first = theirs.config.num_hidden_layers
    theirs.config.num_mtp_layers, theirs.config.mtp_mlp_layer_types = count, ["sparse"] * count
    theirs.config.name_or_path = str(folder)
    theirs._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{first + index}\." for index in range(count)]
    return theirs, MtpModel.from_pretrained(theirs).eval()


def their_logits(folder: Path, texts: Sequence[list[int]], *, layer: int = 0, count: int = 1) -> list[torch.Tensor]:
    theirs, mtp = their_layers(folder, count)
    logits = []
    for text in texts:
        with torch.inference_mode():
            hidden_states = theirs.model(torch.tensor([text[:-1]])).last_hidden_state
            cache = MtpCache(config=theirs.config.get_mtp_config())
            positions, ids = torch.arange(1, len(text))[None], torch.tensor([text[1:]])
            logits.append(mtp._project_to_logits(mtp.forward_layer(layer, hidden_states, positions, cache, ids))[0])
    return logits


def assert_close(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == torch.float32
        assert actual.shape == expected.shape
        assert (actual - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tiny_family: Callable[[str], Path]) -> Tiny:
    folder, texts = tiny_family(request.param), sorted(make_texts(*LENGTHS), key=len)
    return Tiny(folder, *load_both(folder), texts, their_logits(folder, texts))


def test_a_ragged_batch_gives_the_logits_of_transformers(tiny: Tiny):
    assert_close(draft_logits(tiny.loaded, tiny.draft, tiny.texts), tiny.expected)


def test_a_layer_keeps_of_tokens_what_later_ones_read_though_nothing_else_is_asked_of_it(tiny: Tiny):
    text, expected = tiny.texts[1], tiny.expected[1]
    model = Drafting(tiny.loaded.model, tiny.draft)
    run = PagedRun(model, 1)
    model.next_ids, model.only_keeps = torch.tensor(text[1:-1]), True
    run.step([SequenceStep(text[:-2], 0, range(1))])
    model.next_ids, model.only_keeps = torch.tensor(text[-1:]), False
    last = run.step([SequenceStep(text[-2:-1], len(text) - 2, range(1))])[0]
    with torch.inference_mode():
        assert_close([tiny.draft.compute_logits(last)], [expected[-1:]])


def test_chunks_and_single_tokens_through_both_caches_give_the_same_logits(tiny: Tiny):
    text, expected = tiny.texts[-1], tiny.expected[-1]
    model = Drafting(tiny.loaded.model, tiny.draft)
    run, rows = PagedRun(model, 16), []
    for start, end in [(0, 7), (7, 64), (64, 100), *((one, one + 1) for one in range(100, len(text) - 1))]:
        model.next_ids = torch.tensor(text[start + 1 : end + 1])
        rows += run.step([SequenceStep(text[start:end], start, range(16))])
    with torch.inference_mode():
        assert_close([tiny.draft.compute_logits(torch.cat(rows))], [expected])


def test_a_second_draft_reads_the_first_one_and_what_came_out_of_the_norm(tiny: Tiny):
    """Both by the whole history: the first token and feature of the second pass are those of the second position."""
    text = tiny.texts[2]
    model = Drafting(tiny.loaded.model, tiny.draft)
    model.next_ids = torch.tensor(text[1:])
    run = PagedRun(model, 16)
    features = run.step([SequenceStep(text[:-1], 0, range(16))])[0]
    guess = int(tiny.draft.compute_logits(features[-1:]).argmax())

    class Again(nn.Module):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return tiny.draft(input_ids, positions, features[-1:], 1)

    run.model = Again()
    ours = tiny.draft.compute_logits(run.step([SequenceStep([guess], len(text) - 1, range(16))])[0])
    theirs, mtp = their_layers(tiny.folder, 1)
    with torch.inference_mode():
        cache, positions = MtpCache(config=theirs.config.get_mtp_config()), torch.arange(1, len(text))[None]
        hidden_states = theirs.model(torch.tensor([text[:-1]])).last_hidden_state
        first = mtp.forward_layer(0, hidden_states, positions, cache, torch.tensor([text[1:]]))
        second = mtp.forward_layer(0, first[:, -1:], positions[:, -1:] + 1, cache, torch.tensor([[guess]]))
        assert_close([ours], [mtp._project_to_logits(second)[0]])


def test_a_draft_reads_its_own_tensors_alone_and_the_target_goes_on_to_pass_them_over(tiny: Tiny, monkeypatch):
    read: list[str] = []

    class Noted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Any:
            self._file = self._file.__enter__()
            return self

        def __exit__(self, *exit_info: Any) -> None:
            self._file.__exit__(*exit_info)

        def keys(self) -> Any:
            return self._file.keys()

        def get_slice(self, name: str) -> Any:
            return self._file.get_slice(name)

        def get_tensor(self, name: str) -> Any:
            read.append(name)
            return self._file.get_tensor(name)

    monkeypatch.setattr(
        "atom_models.weights.safetensors_source.safe_open", lambda *args, **options: Noted(safe_open(*args, **options))
    )
    load_both(tiny.folder)
    prefix = f"model.layers.{tiny.loaded.model.config.num_hidden_layers}."  # type: ignore[union-attr]
    first = next(index for index, name in enumerate(read) if name.startswith(prefix))
    assert all(name.startswith(prefix) for name in read[first:])
    assert {f"{prefix}{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm")} < set(read)
    assert not {f"{prefix}embed_tokens.weight", f"{prefix}shared_head.head.weight"} & set(read)


def test_caches_of_a_draft_and_its_target_have_different_names(tiny: Tiny):
    of_draft, of_target = mixer_layers(tiny.draft), mixer_layers(tiny.loaded.model)
    assert list(of_draft) == [f"model.layers.{len(of_target)}.self_attn.attn"]
    assert not of_draft.keys() & of_target.keys()


def test_a_draft_of_random_weights_needs_no_file(tiny: Tiny, tmp_path: Path):
    shutil.copy(tiny.folder / "config.json", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    target = build_model(checkpoint, tiny.loaded.context)
    draft = build_draft(checkpoint, tiny.loaded.context, target=target)
    load_dummy_weights(target)
    load_dummy_weights(draft)
    [logits] = draft_logits(LoadedModel(target, checkpoint, tiny.loaded.context), draft, make_texts(5))
    assert logits.shape == (4, 384)
    assert logits.isfinite().all()


def test_shards_give_the_same_draft_as_one_file(tiny: Tiny, tmp_path: Path):
    shutil.copy(tiny.folder / "config.json", tmp_path)
    write_weights(tmp_path, load_file(tiny.folder / "model.safetensors"), num_shards=3)
    for ours, other in zip(
        draft_logits(*load_both(tmp_path), tiny.texts[:2]),
        draft_logits(tiny.loaded, tiny.draft, tiny.texts[:2]),
        strict=True,
    ):
        assert torch.equal(ours, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_prediction_layers_take_turns(family: str, tmp_path: Path):
    folder = make_predicting(family, tmp_path, num_prediction_layers=2)
    loaded, draft = load_both(folder)
    texts = make_texts(9, 20)
    for step in range(3):
        expected = their_logits(folder, texts, layer=step % 2, count=2)
        assert_close(draft_logits(loaded, draft, texts, step=step), expected)
    assert len(mixer_layers(draft)) == 2


@pytest.mark.parametrize("reads", ["token", "hidden"])
def test_a_draft_that_agrees_with_its_model_guesses_every_token_that_it_generates(reads: Any, tmp_path: Path):
    loaded, draft = load_both(make_agreeing(tmp_path, reads=reads))
    cycle, tokens = TinyCycle(), [TinyCycle().order[0]]
    for _ in range(40):
        tokens.append(cycle.next[tokens[-1]])
    assert loaded.logits([tokens])[0].argmax(-1).tolist() == [cycle.next[token] for token in tokens]
    [guesses] = draft_logits(loaded, draft, [tokens])
    assert guesses.argmax(-1).tolist() == [cycle.next[token] for token in tokens[1:]]


def test_a_draft_that_reads_the_context_is_mostly_right_and_mostly_wrong_without_it(tmp_path: Path):
    loaded, draft = load_both(make_agreeing(tmp_path, reads="context"))
    tokens = make_texts(12, seed=1)[0]
    for _ in range(40):
        tokens.append(int(loaded.logits([tokens])[0][-1].argmax()))
    [guesses] = draft_logits(loaded, draft, [tokens])
    right = [int(guesses[i].argmax()) == tokens[i + 2] for i in range(11, len(tokens) - 2)]
    assert sum(right) >= 0.85 * len(right)
    alone = [draft_logits(loaded, draft, [tokens[i : i + 2]])[0] for i in range(11, len(tokens) - 2)]
    right = [int(guess.argmax()) == tokens[i + 2] for i, guess in enumerate(alone, start=11)]
    assert sum(right) <= 0.5 * len(right)


def test_a_checkpoint_says_how_many_prediction_layers_it_declares(tiny_family: Callable[[str], Path], tiny_llama: Path):
    assert prediction_layers(open_checkpoint(tiny_family("deepseek_v3"))) == 1
    assert prediction_layers(open_checkpoint(tiny_family("kimi_k2"))) == 0
    assert prediction_layers(open_checkpoint(tiny_llama)) == 0


def refusal(folder: Path, **options: Any) -> str:
    """What building a draft says, once the target is built; one line."""
    checkpoint = open_checkpoint(folder)
    context = BuildContext(max_model_len=64, **options)
    target = build_model(checkpoint, context)
    with pytest.raises(CheckpointError) as caught:
        build_draft(checkpoint, context, target=target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_family_without_prediction_layers_is_refused_and_those_that_have_some_are_named(tiny_llama: Path):
    message = refusal(tiny_llama)
    assert str(tiny_llama) in message
    assert "those of LlamaForCausalLM are not implemented" in message
    assert "DeepseekV3ForCausalLM, Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM" in message


def test_layers_that_a_config_declares_and_nobody_published_are_refused(tiny_family, tmp_path: Path):
    shutil.copytree(tiny_family("minimax_m2"), tmp_path, dirs_exist_ok=True)
    rewrite_config(tmp_path, use_mtp=True, num_mtp_modules=3, mtp_transformer_layers=1)
    assert "config.json declares 3, but those of MiniMaxM2ForCausalLM are not implemented" in refusal(tmp_path)
    assert load_model(tmp_path, progress=False).logits([[5, 6]])[0].shape == (2, 384)


def test_a_model_of_such_a_family_may_have_none(tiny_family: Callable[[str], Path]):
    assert "config.json declares none" in refusal(tiny_family("kimi_k2"))


def test_layers_of_transformers_have_no_prediction_layers(tiny_family: Callable[[str], Path]):
    assert "runs in transformers' layers" in refusal(tiny_family("glm4_moe"), model_impl="transformers")


def test_a_count_that_is_none_is_refused(tmp_path: Path):
    make_agreeing(tmp_path)
    rewrite_config(tmp_path, num_nextn_predict_layers="one")
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers is 'one', not a number of layers"):
        choose_draft(open_checkpoint(tmp_path))


def test_weights_that_a_conversion_lost_are_named_with_the_folder(tmp_path: Path):
    make_agreeing(tmp_path)

    def lose(weights: dict[str, Any]) -> None:
        for name in [name for name in weights if name.startswith("model.layers.2.")]:
            del weights[name]

    rewrite_weights(tmp_path, lose)
    message = refusal(tmp_path)
    assert str(tmp_path) in message
    named = re.search(r"holds none of their 27 weights \((.*) \.\.\.\), as happens", message)
    assert named is not None
    first, second, third = named[1].split(", ")
    assert (first, second) == ("model.layers.2.enorm.weight", "model.layers.2.hnorm.weight")
    assert third.startswith("model.layers.2.")


def test_a_single_weight_that_is_missing_is_named(tmp_path: Path):
    make_agreeing(tmp_path)
    rewrite_weights(tmp_path, lambda weights: weights.pop("model.layers.2.eh_proj.weight"))
    message = refusal(tmp_path)
    assert f"{tmp_path} does not fit the model: 1 missing weight: model.layers.2.eh_proj.weight" in message


def test_a_layer_fewer_than_declared_is_named(tmp_path: Path):
    make_agreeing(tmp_path, num_prediction_layers=1)
    rewrite_config(tmp_path, num_nextn_predict_layers=2)
    assert "missing weights: model.layers.3.enorm.weight" in refusal(tmp_path)


def test_a_weight_of_a_wrong_shape_is_named(tmp_path: Path):
    make_agreeing(tmp_path)

    def cut(weights: dict[str, Any]) -> None:
        weights["model.layers.2.eh_proj.weight"] = weights["model.layers.2.eh_proj.weight"][:, :64].copy()

    rewrite_weights(tmp_path, cut)
    assert "model.layers.2.eh_proj.weight is [64, 64], but the config calls for [64, 128]" in refusal(tmp_path)


def test_a_weight_that_the_draft_does_not_take_is_named(tmp_path: Path):
    make_agreeing(tmp_path)
    rewrite_weights(
        tmp_path, lambda weights: weights.update({"model.layers.2.extra.weight": weights["model.norm.weight"]})
    )
    assert "1 unexpected weight: model.layers.2.extra.weight" in refusal(tmp_path)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_prediction_layers_of_a_quantized_checkpoint_have_its_formats(family: str, tiny_family, tmp_path: Path):
    quantized, twin = write_quantized(tmp_path, tiny_family(family), PUBLISHED["fp8 tiles"])
    [[ours], [exact]] = [draft_logits(*load_both(folder), make_texts(20)) for folder in (quantized, twin)]
    assert_close([ours], [exact])
    draft = load_both(quantized)[1]
    stored = {weights.stored for layer in loadable(draft) for weights in layer.weights() if weights.held}
    assert any(name.startswith("fp8") for name in stored)


def test_prediction_layers_of_a_gguf_file_are_refused(tmp_path: Path):
    folder = make_predicting("glm4_moe", tmp_path / "folder")
    write_gguf(folder, tmp_path / "model.gguf")
    assert "those of GGUF files are not read" in refusal(tmp_path / "model.gguf")


def test_a_list_of_the_layers_of_a_model_says_nothing_of_its_prediction_layers(tiny_family, tmp_path: Path):
    shutil.copytree(tiny_family("glm4_moe_lite"), tmp_path, dirs_exist_ok=True)
    rewrite_config(tmp_path, mlp_layer_types=["dense", "sparse", "sparse"])
    texts = make_texts(9)
    [[ours], [expected]] = [
        draft_logits(*load_both(folder), texts) for folder in (tmp_path, tiny_family("glm4_moe_lite"))
    ]
    assert torch.equal(ours, expected)
