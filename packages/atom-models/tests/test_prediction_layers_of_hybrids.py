"""Prediction layers that transformers does not build: held against a model of one layer made of their weights.

Those of Qwen3-Next and Qwen3.5 are layers with attention; those of DeepSeek V3.2 and GLM-5 have an index of their own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom_models import CheckpointError, mixer_layers, open_checkpoint
from atom_models.drafting import choose_draft, prediction_layers
from atom_models.layers.loadable import loadable
from atom_models.paged_run import PagedRun, SequenceStep
from draft_runs import Drafting, draft_logits, load_both
from quantized_checkpoints import PUBLISHED, write_quantized
from tiny_architectures import PAST_EVERY_WINDOW, reference_model
from tiny_drafts import rewrite_config, rewrite_weights

pytestmark = pytest.mark.usefixtures("quiet_transformers")

QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
FAMILIES = (*QWEN, "deepseek_v32", "glm_moe_dsa")
LENGTHS = (2, 8, 17, 34, PAST_EVERY_WINDOW)
# DeepSeek's names of what stands before the prediction layer, and the names that hybrids publish.
_NORMS = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "shared_head.norm": "norm"}


def make_texts(*lengths: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


class TheirLayer:
    """The prediction layer of a folder, by transformers: a model of one layer, and the norms before it."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._target = reference_model(folder)
        config: dict[str, Any] = json.loads((folder / "transformers" / "config.json").read_text())
        self._is_qwen, self._eps = config["model_type"].startswith("qwen"), config["rms_norm_eps"]
        first = config["num_hidden_layers"]
        prefix = "mtp.layers.0." if self._is_qwen else f"model.layers.{first}."
        parts = "mtp." if self._is_qwen else prefix
        stored = load_file(folder / "model.safetensors")
        self._parts = {
            ours: stored[f"{parts}{qwens if self._is_qwen else ours}.weight"] for ours, qwens in _NORMS.items()
        }
        config |= {"num_hidden_layers": 1, "first_k_dense_replace": 0}
        kinds = {
            "layer_types": config.get("layer_types", [""])[-1],
            "mlp_layer_types": "sparse",
            "indexer_types": "full",
        }
        config |= {name: [kind] for name, kind in kinds.items() if config.get(name)}
        weights = {
            f"model.layers.0.{name.removeprefix(prefix)}": tensor
            for name, tensor in stored.items()
            if name.startswith(prefix)
        }
        weights |= {
            f"model.{name}": tensor
            for name, tensor in self._target.model.state_dict().items()
            if name.startswith("embed_tokens")
        }
        weights |= {"model.norm.weight": self._parts["shared_head.norm"], "lm_head.weight": self._target.lm_head.weight}
        scratch.mkdir()
        (scratch / "config.json").write_text(json.dumps(config))
        kept = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
        save_file(kept, scratch / "model.safetensors", {"format": "pt"})
        layer, loading = transformers.AutoModelForCausalLM.from_pretrained(
            scratch, dtype=torch.float32, output_loading_info=True
        )
        assert not loading["missing_keys"]
        assert not loading["mismatched_keys"]
        self._layer = layer.eval()

    def logits(self, text: Sequence[int]) -> torch.Tensor:
        """Those of the token after the next, at each position but the last."""
        with torch.inference_mode():
            hidden_states = self._target.model(torch.tensor([text[:-1]])).last_hidden_state
            embeds = self._target.model.embed_tokens(torch.tensor([text[1:]]))
            both = torch.cat([self._norm(embeds, "enorm"), self._norm(hidden_states, "hnorm")], dim=-1)
            return self._layer(inputs_embeds=both @ self._parts["eh_proj"].T).logits[0]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps)
        return normed * (self._parts[name] + (1 if self._is_qwen else 0))


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tiny_family: Callable[[str], Path], tmp_path_factory) -> tuple[Any, Any, TheirLayer]:
    """A target, its draft, and that draft of transformers."""
    folder = tiny_family(request.param)
    return *load_both(folder), TheirLayer(folder, tmp_path_factory.mktemp("theirs") / "layer")


def assert_close(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.shape == expected.shape
        assert (actual - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


def test_a_ragged_batch_gives_the_logits_of_transformers(tiny):
    loaded, draft, theirs = tiny
    texts = make_texts(*LENGTHS)
    assert_close(draft_logits(loaded, draft, texts), [theirs.logits(text) for text in texts])


def test_chunks_and_single_tokens_through_both_caches_give_the_same_logits(tiny):
    loaded, draft, theirs = tiny
    [text] = make_texts(80)
    model = Drafting(loaded.model, draft)
    run, rows = PagedRun(model, 8), []
    for start, end in [(0, 7), (7, 64), *((one, one + 1) for one in range(64, len(text) - 1))]:
        model.next_ids = torch.tensor(text[start + 1 : end + 1])
        rows += run.step([SequenceStep(text[start:end], start, range(8))])
    with torch.inference_mode():
        assert_close([draft.compute_logits(torch.cat(rows))], [theirs.logits(text)])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_draft_keeps_lies_in_layers_of_its_own(family: str, tiny_family: Callable[[str], Path]):
    loaded, draft = load_both(tiny_family(family))
    of_draft = mixer_layers(draft)
    assert not of_draft.keys() & mixer_layers(loaded.model).keys()
    prefix = "mtp.layers.0" if family in QWEN else "model.layers.3"
    index = [] if family in QWEN else [f"{prefix}.self_attn.indexer.choose"]
    assert sorted(of_draft) == [f"{prefix}.self_attn.attn", *index]
    assert not any(layer.problem.keeps.in_slots for layer in of_draft.values())


def test_a_model_whose_config_has_no_field_for_it_has_one_layer(tiny_family: Callable[[str], Path]):
    checkpoint = open_checkpoint(tiny_family("qwen3_next"))
    assert prediction_layers(checkpoint) == 0
    assert choose_draft(checkpoint).num_layers == 1
    assert choose_draft(open_checkpoint(tiny_family("qwen3_5"))).num_layers == 1


def test_layers_under_mtp_share_their_inputs_and_their_norm(tiny_family: Callable[[str], Path], tmp_path: Path):
    folder = copy_of(tiny_family("qwen3_5-text"), tmp_path)
    rewrite_config(folder, mtp_num_hidden_layers=2)

    def add(weights: dict[str, Any]) -> None:
        second = {
            name.replace(".0.", ".1."): -value for name, value in weights.items() if name.startswith("mtp.layers")
        }
        weights.update(second)

    rewrite_weights(folder, add)
    loaded, draft = load_both(folder)
    assert draft.inputs[0] is draft.inputs[1]
    texts = make_texts(9)
    first, second, third = [draft_logits(loaded, draft, texts, step=step)[0] for step in range(3)]
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v32"])
def test_prediction_layers_of_a_quantized_checkpoint_have_its_formats(
    family: str, tiny_family: Callable[[str], Path], tmp_path: Path
):
    """A projection that is left plain is read as it is stored, though the config names no exception."""
    (quantized, twin), texts = write_quantized(tmp_path, tiny_family(family), PUBLISHED["fp8 tiles"]), make_texts(20)
    stored = load_file(quantized / "model.safetensors")
    name = "mtp.fc" if family == "qwen3_next" else "model.layers.3.eh_proj"
    stored[f"{name}.weight"] = load_file(twin / "model.safetensors")[f"{name}.weight"]
    stored.pop(f"{name}.weight_scale_inv", None)
    save_file(stored, quantized / "model.safetensors", {"format": "pt"})
    loaded, draft = load_both(quantized)
    assert_close(draft_logits(loaded, draft, texts), draft_logits(*load_both(twin), texts))
    formats = [weights.stored for layer in loadable(draft) for weights in layer.weights() if weights.held]
    assert {found.startswith("fp8") for found in formats} == {True, False}


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5-text", "deepseek_v32", "glm_moe_dsa"])
def test_weights_that_a_conversion_lost_are_named_before_any_is_read(
    family: str, tiny_family: Callable[[str], Path], tmp_path: Path
):
    folder = copy_of(tiny_family(family), tmp_path)
    own = "mtp." if family in ("qwen3_next", "qwen3_5-text") else "model.layers.3."
    rewrite_weights(folder, lambda weights: [weights.pop(name) for name in list(weights) if name.startswith(own)])
    with pytest.raises(CheckpointError, match=f"declares prediction layers and holds none of their .* weights .{own}"):
        load_both(folder)


def test_a_table_of_its_own_is_refused_by_name(tiny_family: Callable[[str], Path], tmp_path: Path):
    folder = copy_of(tiny_family("qwen3_5-text"), tmp_path)
    rewrite_weights(
        folder, lambda weights: weights.update({"mtp.embed_tokens.weight": weights["model.embed_tokens.weight"]})
    )
    with pytest.raises(CheckpointError, match="1 unexpected weight: mtp.embed_tokens.weight"):
        load_both(folder)


def copy_of(folder: Path, target: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        (target / name).write_bytes((folder / name).read_bytes())
    return target
