"""EAGLE and EAGLE-3 heads = the papers' formulas in float32, over hidden states of targets in transformers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from atom_models import (
    BuildContext,
    LoadedModel,
    build_model,
    load_dummy_weights,
    mixer_layers,
    open_checkpoint,
)
from atom_models.drafting import build_draft, choose_draft, stored_head
from atom_models.drafting.eagle_config import eagle_method, read_eagle_config
from atom_models.layers.loadable import loadable
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.quantization import ONLINE
from draft_runs import Drafting, draft_logits, load_both, refusal
from tiny_architectures import make_tiny, reference_model
from tiny_drafts import TinyCycle, rewrite_config, rewrite_weights
from tiny_heads import HeadReference, make_agreeing_head, make_head
from tiny_models import make_tiny_llama

pytestmark = pytest.mark.usefixtures("quiet_transformers")

VARIANTS: dict[str, dict[str, Any]] = {
    "midlayer": {},
    "layers": {"layout": "layers"},
    "model.layers": {"layout": "model.layers", "own_embedding": True},
    "speculators": {"layout": "speculators", "norm_before_residual": True, "draft_vocab_size": 100},
    "speculators by default": {"layout": "speculators"},
    "speculators of qwen3 layers": {"layout": "speculators", "model_type": "qwen3", "norm_before_residual": False},
    "two layers": {"num_hidden_layers": 2, "layout": "layers"},
    "some tokens": {"draft_vocab_size": 100},
    "an embedding of its own": {"own_embedding": True},
    "another size": {"own_embedding": True, "hidden_size": 48, "target_hidden_size": 64},
    "another size and norms": {
        "own_embedding": True,
        "hidden_size": 48,
        "target_hidden_size": 64,
        "fc_norm": True,
        "norm_before_fc": True,
    },
    "residual after the norm": {"norm_before_residual": True},
    "output after the norm": {"norm_output": True},
    "one norm before fc": {"norm_before_fc": True},
    "norms before fc": {"fc_norm": True},
    "two layers of the target": {"eagle_aux_hidden_state_layer_ids": [2, 3]},
    "a scale of logits": {"logit_scale": 0.25},
    "biases": {"attention_bias": True},
    "plain architecture": {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 100},
    "eagle": {"method": "eagle", "layout": "layers"},
    "eagle with a bias": {"method": "eagle", "layout": "layers", "fc_bias": True},
    "eagle of a plain architecture": {
        "method": "eagle",
        "layout": "layers",
        "architectures": ["LlamaForCausalLM"],
        "own_embedding": True,
    },
    "eagle with two layers": {"method": "eagle", "layout": "layers", "num_hidden_layers": 2},
}
LENGTHS = (9, 2, 130, 33)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Llama and a Qwen3 of four layers, and what transformers loads of each."""
    folder = tmp_path_factory.mktemp("targets")
    sizes = {"num_hidden_layers": 4, "vocab_size": 512, "tie_word_embeddings": False}
    return {
        "llama": make_tiny_llama(folder / "llama", num_layers=4, rope="llama3"),
        "qwen3": make_tiny("qwen3", folder / "qwen3", **sizes),
    }


def make_texts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 512) for _ in range(length)] for length in lengths]


def reference_of(target: Path, head: Path) -> tuple[Any, HeadReference]:
    """The target in transformers, and the head's formula over its stored tensors."""
    saved = target / "transformers"
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    theirs = reference_model(target) if saved.is_dir() else load(target, dtype=torch.float32)
    config = json.loads((head / "config.json").read_text())
    if "transformer_layer_config" in config:
        config = {"norm_before_residual": True} | config.pop("transformer_layer_config") | config
    config |= config.pop("eagle_config", {})
    stored = load_file(head / "model.safetensors").items()
    weights = {name.removeprefix("model.").replace("midlayer.", "layers.0."): tensor for name, tensor in stored}
    if "layers.0.hidden_norm.weight" not in weights:
        weights.pop("embed_tokens.weight", None)
    weights["target.embed_tokens.weight"] = theirs.get_input_embeddings().weight.detach()
    weights["target.lm_head.weight"] = theirs.lm_head.weight.detach()
    return theirs, HeadReference(config, weights)


def features_of(theirs: Any, reference: HeadReference, text: list[int]) -> torch.Tensor:
    """What the head reads at each position but the last one."""
    streams: list[torch.Tensor] = []
    layers = theirs.model.layers
    hooks = [layers[0].register_forward_pre_hook(lambda _, args: streams.append(args[0][0]))]
    hooks += [layer.register_forward_hook(lambda _, args, out: streams.append(_first(out)[0])) for layer in layers]
    try:
        with torch.inference_mode():
            *_, normed = theirs(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
            return reference.features(normed[0], streams)
    finally:
        for hook in hooks:
            hook.remove()


def _first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_ragged_batch_gives_the_logits_of_the_formula(variant: str, targets: dict[str, Path], tmp_path: Path):
    target = targets["qwen3" if "qwen3" in variant else "llama"]
    head, texts = make_head(tmp_path, **VARIANTS[variant]), make_texts(*LENGTHS)
    theirs, reference = reference_of(target, head)
    for text, ours in zip(texts, draft_logits(*load_both(target, head), texts), strict=True):
        expected = reference.logits(reference.outputs(features_of(theirs, reference, text), text[1:]))
        assert_close(ours, expected)


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "qwen3_moe-mixed", "mistral"])
def test_a_head_drafts_behind_a_target_of_any_family(family: str, tiny_family: Any, tmp_path: Path):
    target, draw = tiny_family(family), random.Random(0)
    hidden, layers = (80, [1, 2, 3]) if family == "gpt_oss" else (64, [1] if "mixed" in family else [2])
    sizes: dict[str, Any] = {"hidden_size": hidden, "target_hidden": hidden, "eagle_aux_hidden_state_layer_ids": layers}
    head, text = make_head(tmp_path, vocab=384, **sizes), [draw.randrange(3, 384) for _ in range(30)]
    theirs, reference = reference_of(target, head)
    expected = reference.logits(reference.outputs(features_of(theirs, reference, text), text[1:]))
    assert_close(draft_logits(*load_both(target, head), [text])[0], expected)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("variant", ["midlayer", "output after the norm", "eagle"])
def test_chunks_and_further_drafts_through_the_cache_give_the_same(
    variant: str, family: str, targets: dict[str, Path], tmp_path: Path
):
    """Drafts read the one before and what came out of it, as if they were the text's own tokens and features."""
    target, head, [text] = targets[family], make_head(tmp_path, **VARIANTS[variant]), make_texts(80)
    theirs, reference = reference_of(target, head)
    loaded, draft = load_both(target, head)
    model, rows = Drafting(loaded.model, draft), []
    run = PagedRun(model, 6)
    for start, end in [(0, 5), (5, 37), (37, 78), (78, 79)]:
        model.next_ids = torch.tensor(text[start + 1 : end + 1])
        rows += run.step([SequenceStep(text[start:end], start, range(6))])
    features, tokens = features_of(theirs, reference, text), text[1:]
    outputs = reference.outputs(features, tokens)
    assert_close(draft.compute_logits(torch.cat(rows)), reference.logits(outputs))
    last = rows[-1][-1:]
    for step in (1, 2):
        guess = int(reference.logits(outputs)[-1].argmax())

        class Again(torch.nn.Module):
            def forward(self, input_ids, positions, last=last, step=step):
                return draft(input_ids, positions, last, step)

        run.model = Again()
        [last] = run.step([SequenceStep([guess], 78 + step, range(6))])
        features, tokens = torch.cat([features, outputs[-1:]]), [*tokens, guess]
        outputs = reference.outputs(features, tokens)
        assert_close(draft.compute_logits(last), reference.logits(outputs[-1:]))


@pytest.mark.parametrize("variant", ["midlayer", "two layers", "eagle", "eagle with two layers"])
def test_a_head_keeps_of_tokens_what_later_ones_read_though_nothing_else_is_asked_of_it(
    variant: str, targets: dict[str, Path], tmp_path: Path
):
    target, head, [text] = targets["llama"], make_head(tmp_path, **VARIANTS[variant]), make_texts(40)
    theirs, reference = reference_of(target, head)
    loaded, draft = load_both(target, head)
    model = Drafting(loaded.model, draft)
    run = PagedRun(model, 3)
    model.next_ids, model.only_keeps = torch.tensor(text[1:39]), True
    run.step([SequenceStep(text[:38], 0, range(3))])
    model.next_ids, model.only_keeps = torch.tensor(text[39:]), False
    last = run.step([SequenceStep(text[38:39], 38, range(3))])[0]
    expected = reference.logits(reference.outputs(features_of(theirs, reference, text), text[1:]))
    assert_close(draft.compute_logits(last), expected[-1:])


def test_a_table_is_a_copy_where_it_holds_the_numbers_of_the_targets(targets: dict[str, Path], tmp_path: Path):
    target = open_checkpoint(targets["llama"])
    table = load_file(targets["llama"] / "model.safetensors")["model.embed_tokens.weight"]
    assert stored_head._is_copy(table, target, torch.float32)
    other = table.clone()
    other[-1, -1] += 1e-6
    assert not stored_head._is_copy(other, target, torch.float32)
    assert stored_head._is_copy(other, target, torch.bfloat16)
    assert not stored_head._is_copy(table[:-1], target, torch.float32)
    assert not stored_head._is_copy(table, replace(target, format="gguf"), torch.float32)
    assert not stored_head._is_copy(table, replace(target, path=tmp_path), torch.float32)


def test_what_a_trainer_writes_of_an_ordinary_head_changes_nothing(targets: dict[str, Path], tmp_path: Path):
    head, texts = make_head(tmp_path), make_texts(9)
    [expected] = draft_logits(*load_both(targets["llama"], head), texts)
    choices = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    steps = {"next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1}
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True}
    rewrite_config(head, eagle_config=choices | steps | ids)
    assert torch.equal(draft_logits(*load_both(targets["llama"], head), texts)[0], expected)


def test_draft_ids_become_the_target_ids_that_the_offsets_say(targets: dict[str, Path], tmp_path: Path):
    head = make_head(tmp_path, draft_vocab_size=100)
    _, draft = load_both(targets["llama"], head)
    offsets = load_file(head / "model.safetensors")["d2t"]
    assert draft.target_ids.dtype == torch.int64
    assert draft.target_ids.tolist() == [draft_id + int(offset) for draft_id, offset in enumerate(offsets)]


def test_a_head_of_all_tokens_needs_no_ids_of_its_own(targets: dict[str, Path], tmp_path: Path):
    assert load_both(targets["llama"], make_head(tmp_path))[1].target_ids is None


@pytest.mark.parametrize(
    ("ids", "read"),
    [([2, 4], (1, 3)), ([3], (2,)), ([1, 2, 3], (1, 2, 3)), ([1], (1,))],
)
def test_ids_that_begin_with_1_are_layers_whose_outputs_a_head_reads_and_others_those_after_them(
    ids: list[int], read: tuple[int, ...], targets: dict[str, Path], tmp_path: Path
):
    target, head = open_checkpoint(targets["llama"]), open_checkpoint(make_head(tmp_path))
    rewrite_config(head.path, eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
    choice = choose_draft(target, open_checkpoint(head.path))
    assert (choice.method, choice.num_layers, choice.aux_hidden_states) == ("eagle3", 1, read)


def test_layers_that_no_config_names_are_early_middle_and_late_ones(tmp_path: Path):
    target = make_tiny_llama(tmp_path / "target", num_layers=9)
    head = make_head(tmp_path / "head", eagle_aux_hidden_state_layer_ids=None)
    assert choose_draft(open_checkpoint(target), open_checkpoint(head)).aux_hidden_states == (1, 3, 5)


def test_rotations_reach_as_far_as_the_target_does(targets: dict[str, Path], tmp_path: Path):
    """Published heads say how long the texts of their training were: 64 tokens here."""
    target, head, [text] = targets["llama"], make_head(tmp_path), make_texts(200)
    theirs, reference = reference_of(target, head)
    expected = reference.logits(reference.outputs(features_of(theirs, reference, text), text[1:]))
    for longest in (200, None):
        assert_close(draft_logits(*load_both(target, head, max_model_len=longest), [text])[0], expected)


def test_a_head_is_held_in_plain_numbers_behind_a_target_that_is_rounded(targets: dict[str, Path], tmp_path: Path):
    loaded, draft = load_both(targets["llama"], make_head(tmp_path), quantization=ONLINE["int8"])
    held = [
        {one.held().held for layer in loadable(model) for one in layer.weights() if one.held}
        for model in (loaded.model, draft)
    ]
    assert "int8" in " ".join(held[0])
    assert held[1] == {"float32"}


@pytest.mark.parametrize(
    ("fields", "has_weights", "method"),
    [
        ({"method": "eagle3"}, True, "eagle3"),
        ({"method": "eagle"}, True, "eagle"),
        ({"method": "eagle3", "draft_vocab_size": 100}, False, "eagle3"),
        ({"method": "eagle"}, False, "eagle"),
    ],
)
def test_a_head_with_the_architecture_of_a_llama_is_known_by_its_tensors_or_its_vocabulary(
    fields: dict[str, Any], has_weights: bool, method: str, targets: dict[str, Path], tmp_path: Path
):
    head = make_head(tmp_path, architectures=["LlamaForCausalLM"], **fields)
    if not has_weights:
        (head / "model.safetensors").unlink()
    assert choose_draft(open_checkpoint(targets["llama"]), open_checkpoint(head)).method == method


def test_every_name_of_an_architecture_says_which_method_it_is_of(tmp_path: Path):
    methods = {
        "EagleLlamaForCausalLM": "eagle",
        "LlamaForCausalLMEagle": "eagle",
        "Eagle3LlamaForCausalLM": "eagle3",
        "LlamaForCausalLMEagle3": "eagle3",
        "Eagle3Speculator": "eagle3",
        "Eagle3DraftModel": "eagle3",
        "LlamaForCausalLM": "eagle3",  # by its tensors
    }
    head = make_head(tmp_path)
    found = {}
    for name in methods:
        rewrite_config(head, architectures=[name])
        found[name] = eagle_method(open_checkpoint(head))
    assert found == methods


def test_heads_of_qwen3_layers_are_128_wide_unless_their_config_says_otherwise(tmp_path: Path):
    head = make_head(tmp_path, model_type="qwen3")
    assert read_eagle_config(open_checkpoint(head)).head_size == 16
    rewrite_config(head, head_dim=None)
    assert read_eagle_config(open_checkpoint(head)).head_size == 128
    rewrite_config(head, model_type="llama")
    assert read_eagle_config(open_checkpoint(head)).head_size == 64 // 4


def test_a_table_that_is_a_copy_of_the_targets_is_not_held_twice(targets: dict[str, Path], tmp_path: Path):
    head = make_head(tmp_path, own_embedding=True)
    assert load_both(targets["llama"], head)[1].embed_tokens is not None
    table = load_file(targets["llama"] / "model.safetensors")["model.embed_tokens.weight"].numpy()
    rewrite_weights(head, lambda weights: weights.update({"embed_tokens.weight": table}))
    loaded, draft = load_both(targets["llama"], head)
    assert draft.embed_tokens is None
    rewrite_weights(head, lambda weights: weights.pop("embed_tokens.weight"))
    [text] = make_texts(12)
    assert torch.equal(
        draft_logits(loaded, draft, [text])[0], draft_logits(*load_both(targets["llama"], head), [text])[0]
    )


def test_a_table_that_differs_from_the_targets_in_one_row_is_the_heads_own(
    targets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("atom_models.drafting.stored_head._ROWS_AT_ONCE", 100)
    table = load_file(targets["llama"] / "model.safetensors")["model.embed_tokens.weight"].numpy()
    table[-1] += 1
    head = make_head(tmp_path, own_embedding=True)
    rewrite_weights(head, lambda weights: weights.update({"embed_tokens.weight": table}))
    assert load_both(targets["llama"], head)[1].embed_tokens is not None
    rewrite_weights(head, lambda weights: weights.update({"embed_tokens.weight": table[:300]}))
    assert "draft.embed_tokens.weight is [300, 64]" in refusal(targets["llama"], head)


@pytest.mark.parametrize("variant", ["two layers", "eagle with two layers"])
def test_caches_of_a_head_and_its_target_have_different_names(variant: str, targets: dict[str, Path], tmp_path: Path):
    loaded, draft = load_both(targets["llama"], make_head(tmp_path, **VARIANTS[variant]))
    assert list(mixer_layers(draft)) == ["draft.layers.0.self_attn.attn", "draft.layers.1.self_attn.attn"]
    assert not mixer_layers(draft).keys() & mixer_layers(loaded.model).keys()


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_of_random_weights_needs_no_file(method: Any, targets: dict[str, Path], tmp_path: Path):
    sizes: dict[str, Any] = {"draft_vocab_size": 100} if method == "eagle3" else {}
    head = make_head(tmp_path, method=method, **sizes)
    (head / "model.safetensors").unlink()
    checkpoints = open_checkpoint(targets["llama"]), open_checkpoint(head)
    context = BuildContext(aux_hidden_states=choose_draft(*checkpoints).aux_hidden_states, max_model_len=64)
    target = build_model(checkpoints[0], context)
    draft: Any = build_draft(checkpoints[0], context, target=target, draft_checkpoint=checkpoints[1])
    load_dummy_weights(target)
    load_dummy_weights(draft)
    [logits] = draft_logits(LoadedModel(target, checkpoints[0], context), draft, make_texts(5))
    assert logits.shape == (4, 100 if method == "eagle3" else 512)
    assert logits.isfinite().all()


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_that_agrees_with_its_target_guesses_every_token(method: Any, tmp_path: Path):
    loaded, draft = load_both(*make_agreeing_head(tmp_path, method))
    cycle = TinyCycle()
    [prompt] = make_texts(70)
    assert loaded.logits([prompt])[0].argmax(-1).tolist() == [cycle.next[token] for token in prompt]
    guesses = draft_logits(loaded, draft, [prompt])[0].argmax(-1)
    if draft.target_ids is not None:
        guesses = draft.target_ids[guesses]
    assert guesses.tolist() == [cycle.next[token] for token in prompt[1:]]
