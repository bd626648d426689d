"""The trial of a class of transformers: what passes a look at its calls, and still is not right when packed."""

from __future__ import annotations

import pytest

from atom_models import UnsupportedArchitectureError, load_model

pytest.importorskip("transformers")

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP, Olmo2RotaryEmbedding

from atom_models.fallback import attention, trial
from atom_models.fallback.admission import FallbackRefusedError
from atom_models.fallback.skeleton import read_fields
from tiny_decoders import make_decoder

# Their published sizes, as transformers' classes have them when nothing is given.
PUBLISHED = ("gemma2", "phi3", "olmo2", "olmo3", "granite", "cohere2", "smollm3", "starcoder2", "ernie4_5", "seed_oss")

# States beside keys and values, attention of their own, masks of their own: packed, their sequences would meet.
LEAKING = {
    *("axk2", "bailing_hybrid", "bloom", "cpmant", "deepseek_v32", "deepseek_v4", "diffllama", "doge"),
    *("falcon", "falcon_h1", "falcon_mamba", "glm_moe_dsa", "gpt_neox_japanese", "gptj", "hrm_text", "hy_v4"),
    *("jamba", "kimi_linear", "lfm3", "llama4_text", "minimax", "nemotron_h", "olmo_hybrid", "openai-gpt"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "xglm", "zaya"),
}


@pytest.fixture(autouse=True)
def _anew():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    trial._trial.cache_clear()
    yield
    trial._trial.cache_clear()


def why_refused(model_type: str) -> str | None:
    """Why a type with the sizes of its class does not pass; None if it does."""
    try:
        trial.check_trial(model_type, read_fields(model_type, {}).to_dict())
    except FallbackRefusedError as error:
        return str(error)
    return None


@pytest.mark.parametrize("model_type", [*PUBLISHED, "exaone4", "olmoe", "qwen2_moe", "gpt_neox"])
def test_a_small_model_of_each_class_passes(model_type):
    assert why_refused(model_type) is None


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_every_type_of_transformers_passes_or_is_refused_by_name(model_type):
    reason = why_refused(model_type)
    if model_type in LEAKING:
        assert reason is not None
    assert reason is None or f"transformers' layers of {model_type!r} cannot run here: " in reason


def test_types_that_leak_are_those_of_transformers():
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() >= LEAKING


def test_a_class_whose_sizes_are_unknown_is_refused_before_it_takes_memory(tmp_path, monkeypatch):
    folder = make_decoder("olmo2", tmp_path)
    monkeypatch.setattr(trial, "_MOST_PARAMETERS", 1000)
    with pytest.raises(UnsupportedArchitectureError, match=r"a small model of it has [\d,]+ parameters .at most 1,000"):
        load_model(folder)


def test_layers_that_mix_neighbors_are_refused_before_a_weight_is_read(tmp_path, monkeypatch):
    folder, forward = make_decoder("olmo2", tmp_path), Olmo2MLP.forward
    # Each token looks at the one before it in the row, as a short convolution does: also across two sequences.
    monkeypatch.setattr(Olmo2MLP, "forward", lambda self, x: forward(self, x + 0.1 * torch.roll(x, 1, dims=1)))
    monkeypatch.setattr("atom_models.loaded_model.load_weights", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(UnsupportedArchitectureError, match=r"'olmo2' cannot run here: in a trial, packed sequence"):
        load_model(folder)


def test_positions_counted_over_the_row_are_refused(tmp_path, monkeypatch):
    folder, forward = make_decoder("olmo2", tmp_path), Olmo2RotaryEmbedding.forward

    def over_the_row(self, x, position_ids):
        return forward(self, x, torch.arange(position_ids.shape[1], device=position_ids.device)[None])

    monkeypatch.setattr(Olmo2RotaryEmbedding, "forward", over_the_row)
    with pytest.raises(UnsupportedArchitectureError, match="in a trial, packed sequence 2 of 3"):
        load_model(folder)


def test_a_window_that_is_not_kept_is_refused(tmp_path, monkeypatch):
    folder, take = make_decoder("gemma2", tmp_path), attention.Recorder.take

    def without_window(self, module, query, key, value, mask, given):
        return take(self, module, query, key, value, mask, {**given, "sliding_window": None})

    monkeypatch.setattr(attention.Recorder, "take", without_window)
    with pytest.raises(UnsupportedArchitectureError, match="in a trial, packed sequence 1 of 3"):
        load_model(folder)


def test_an_unknown_argument_of_attention_is_refused(tmp_path, monkeypatch):
    folder, take = make_decoder("olmo2", tmp_path), attention.Recorder.take

    def with_more(self, module, query, key, value, mask, given):
        return take(self, module, query, key, value, mask, {**given, "position_bias": 1.0})

    monkeypatch.setattr(attention.Recorder, "take", with_more)
    with pytest.raises(UnsupportedArchitectureError, match="calls attention with position_bias, which is unknown"):
        load_model(folder)


def test_a_class_is_tried_once(tmp_path, monkeypatch):
    folder = make_decoder("olmo2", tmp_path)
    load_model(folder)
    monkeypatch.setattr(trial, "_compare", lambda *_: pytest.fail("tried again"))
    load_model(folder)
