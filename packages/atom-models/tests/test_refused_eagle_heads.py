"""EAGLE and EAGLE-3 heads that cannot draft behind their target are refused in a line, before weights are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom_models import BuildContext, CheckpointError, build_model, open_checkpoint
from atom_models.drafting import build_draft, choose_draft
from converted_gguf import write_gguf
from draft_runs import refusal
from tiny_drafts import rewrite_config, rewrite_weights
from tiny_heads import make_head
from tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers."""
    return make_tiny_llama(tmp_path_factory.mktemp("target"), num_layers=4, rope="llama3")


def test_a_target_that_gives_outputs_of_other_layers_is_refused(target: Path, tmp_path: Path):
    checkpoint, drafts = open_checkpoint(target), open_checkpoint(make_head(tmp_path))
    context = BuildContext(max_model_len=64, aux_hidden_states=(0, 1, 2))
    model = build_model(checkpoint, context)
    with pytest.raises(
        ValueError, match=r"reads outputs of the target's layers \(1, 2, 3\), and .* those of \(0, 1, 2\)"
    ):
        build_draft(checkpoint, context, target=model, draft_checkpoint=drafts)


WRONG_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "another vocabulary": ({"vocab": 500}, r"made for another model than .*: its vocabulary is 500 .*, and .* is 512"),
    "another size of the target": ({"target_hidden_size": 128}, "hidden size of the target is 128"),
    "another size": ({"hidden_size": 48, "target_hidden": 48}, "hidden size of the target is 48"),
    "an unknown field": ({"dflash_config": {"block_size": 16}}, "sets dflash_config, which is unknown here"),
    "windows": ({"layer_types": ["sliding_attention"]}, r"layer_types is \['sliding_attention'\]"),
    "a window": ({"sliding_window": 512}, "sliding_window is 512"),
    "quantized": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is"),
    "an unknown architecture": (
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
        "its architecture is Eagle3DeepseekV2ForCausalLM, and those of EAGLE and EAGLE-3 heads are LlamaForCausalLM,",
    ),
    "layers of another kind": ({"model_type": "deepseek_v3"}, "layers of model_type 'deepseek_v3' are not implemented"),
    "layers out of order": ({"eagle_aux_hidden_state_layer_ids": [3, 1, 2]}, r"is \[3, 1, 2\]; they must ascend"),
    "a layer twice": ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, r"is \[1, 1, 2\]; they must ascend"),
    "what enters the first layer": (
        {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        r"is \[0, 1, 2\]; they must ascend, from 1 to 4: the target has 4 layers, and such ids name their inputs",
    ),
    "the input of a layer that there is not": ({"eagle_aux_hidden_state_layer_ids": [2, 5]}, "from 1 to 4: .* inputs"),
    "the output of a layer that there is not": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
        r"is \[1, 2, 4\]; they must ascend, from 1 to 3: the target has 4 layers, and such ids name their outputs",
    ),
    "layers in words": ({"eagle_aux_hidden_state_layer_ids": ["1"]}, r"is \['1'\]; they must ascend"),
    "default layers of a small target": (
        {"eagle_aux_hidden_state_layer_ids": None},
        r"is \[2, 2, 1\] \(for want of the field\)",
    ),
    "a field of eagle3 in a head of eagle": (
        {"method": "eagle", "norm_output": True},
        "sets norm_output, which EAGLE-3 alone has",
    ),
    **{
        f"{name} in a head of eagle": ({"method": "eagle", name: True}, f"sets {name}, which EAGLE-3 alone has")
        for name in ("norm_before_residual", "norm_before_fc", "fc_norm")
    },
    "layers of the target in a head of eagle": (
        {"method": "eagle", "eagle_aux_hidden_state_layer_ids": [1, 2]},
        "sets eagle_aux_hidden_state_layer_ids, which EAGLE-3 alone has",
    ),
    "another size of the target in a head of eagle": (
        {"method": "eagle", "hidden_size": 48, "target_hidden_size": 64},
        "sets target_hidden_size, which EAGLE-3 alone has",
    ),
    "a factor on the logits in a head of eagle": (
        {"method": "eagle", "logit_scale": 2.0},
        "sets logit_scale, which EAGLE-3 alone has",
    ),
    "a small vocabulary in a head of eagle": (
        {"method": "eagle", "draft_vocab_size": 100},
        "sets draft_vocab_size, which EAGLE-3 alone has",
    ),
    "a field of a wrong type": ({"norm_output": "yes"}, "norm_output is 'yes', not true or false"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_head_whose_config_does_not_fit_is_refused(case: str, target: Path, tmp_path: Path):
    fields, says = WRONG_FIELDS[case]
    message = refusal(target, make_head(tmp_path, **fields))
    assert message.startswith(str(tmp_path))
    assert re.search(says, message), message


WRITTEN_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "more drafted tokens than there are": ({"draft_vocab_size": 600}, "draft_vocab_size is 600, more than the 512"),
    "no outputs of layers": ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
    "a number of layers": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}}, "is 3; they must ascend"),
    "no object": ({"eagle_config": 3}, "eagle_config is 3, not an object"),
    "no object of a layer": ({"transformer_layer_config": [1]}, "transformer_layer_config is [1], not an object"),
    "drafts side by side": ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step is 4"),
    "an unknown field of eagle_config": ({"eagle_config": {"mode": 2}}, "sets mode, which is unknown here"),
}


@pytest.mark.parametrize("case", WRITTEN_FIELDS)
def test_a_head_whose_config_was_changed_is_refused(case: str, target: Path, tmp_path: Path):
    fields, says = WRITTEN_FIELDS[case]
    rewrite_config(make_head(tmp_path), **fields)
    assert says in refusal(target, tmp_path)


def test_another_format_of_speculators_is_refused(target: Path, tmp_path: Path):
    head = make_head(tmp_path, layout="speculators")
    rewrite_config(head, speculators_model_type="dflash")
    assert "speculators_model_type is 'dflash'; only eagle3 can draft here" in refusal(target, head)


WRONG_TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing layer": (
        dict.fromkeys(("midlayer.self_attn.q_proj.weight", "midlayer.mlp.up_proj.weight")),
        "2 missing weights: draft.layers.0.self_attn.q_proj.weight, draft.layers.0.mlp.up_proj.weight",
    ),
    "a surplus tensor": ({"extra.weight": np.ones(3, np.float32)}, "1 unexpected weight: draft.extra.weight"),
    "a wrong shape": ({"fc.weight": np.ones((64, 64), np.float32)}, "draft.fc.weight is [64, 64]"),
    "no head of its own": ({"lm_head.weight": None}, "1 missing weight: draft.lm_head.weight"),
    "no offsets": ({"d2t": None}, "drafts 100 of 512 tokens and lacks the tensor d2t"),
    "offsets of another length": (
        {"d2t": np.zeros(99, np.int64)},
        "d2t is int64 [99], and must be int64 [100]",
    ),
    "offsets that are no integers": ({"d2t": np.zeros(100, np.float32)}, "d2t is float32 [100], and must be int64"),
    "offsets behind the vocabulary": (
        {"d2t": np.array([0] * 99 + [413])},
        "d2t makes token 512 of the draft's token 99; the target's vocabulary ends at 512",
    ),
    "offsets before the vocabulary": ({"d2t": np.array([-1] + [0] * 99)}, "d2t makes token -1 of the draft's token 0"),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_a_head_whose_tensors_do_not_fit_is_refused(case: str, target: Path, tmp_path: Path):
    changes, says = WRONG_TENSORS[case]
    head = make_head(tmp_path, draft_vocab_size=100)

    def change(weights: dict[str, np.ndarray]) -> None:
        for name, value in changes.items():
            if value is None:
                del weights[name]
            else:
                weights[name] = value

    rewrite_weights(head, change)
    assert says in refusal(target, head)


def test_a_head_of_another_size_needs_an_embedding(target: Path, tmp_path: Path):
    head = make_head(tmp_path, hidden_size=48, target_hidden_size=64)
    assert "1 missing weight: draft.embed_tokens.weight" in refusal(target, head)


def test_heads_draft_behind_our_own_layers_alone(target: Path, tmp_path: Path):
    message = refusal(target, make_head(tmp_path), model_impl="transformers")
    assert "runs in transformers' layers, behind which no head can draft" in message


def test_a_target_whose_embeddings_are_scaled_is_refused(tiny_family: Any, tmp_path: Path):
    choose = open_checkpoint(tiny_family("gemma3")), open_checkpoint(make_head(tmp_path, vocab=384))
    with pytest.raises(CheckpointError, match="is Gemma3ForCausalLM, which scales its embeddings"):
        choose_draft(*choose)


def test_a_head_in_a_gguf_file_is_refused(target: Path, tmp_path: Path):
    write_gguf(target, tmp_path / "head.gguf")
    assert "draft models of GGUF files are not read" in refusal(target, tmp_path / "head.gguf")
