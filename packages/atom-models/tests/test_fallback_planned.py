"""Layers of transformers run by our operators where they compute the same, and as they are where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom_kernels.platform import detect_platform
from atom_models import load_model

pytest.importorskip("transformers")

import torch
import transformers
from torch import nn
from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP, Olmo2RMSNorm

from atom_models.fallback import planned, trial
from atom_models.fallback.attention import LAYER
from tiny_decoders import make_decoder

pytestmark = pytest.mark.usefixtures("quiet_transformers")


@pytest.fixture(autouse=True)
def _tried_anew():
    trial._trial.cache_clear()
    yield
    trial._trial.cache_clear()


def load(folder: Path) -> tuple[Any, set[str]]:
    """A model, and the last names of its modules that run a plan."""
    loaded = load_model(folder, dtype="float32", model_impl="transformers", progress=False)
    names = (name for name, module in loaded.model.named_modules() if "forward" in vars(module))
    return loaded, {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("olmo2", {"mlp", "q_norm", "post_attention_layernorm", "norm", "q_proj", "down_proj", "lm_head"}),
        ("gemma2", {"mlp", "input_layernorm", "norm", "o_proj", "lm_head"}),
        ("phi3", {"qkv_proj", "gate_up_proj", "input_layernorm"}),
    ],
)
def test_linears_norms_and_gates_run_by_plans_and_give_the_same(model_type: str, expected: set[str], tmp_path: Path):
    folder = make_decoder(model_type, tmp_path)
    loaded, names = load(folder)
    assert expected <= names
    prompt = [*range(5, 45)]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = theirs(torch.tensor([prompt])).logits[0]
    assert (loaded.logits([prompt])[0] - logits).abs().max() <= 1e-4 * (logits.max() - logits.min())


def test_a_plan_holds_the_weights_once(tmp_path: Path):
    loaded, _ = load(make_decoder("olmo2", tmp_path))
    held = [name for name, one in loaded.model.named_parameters() if not one.is_meta]
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in held} == {"embed_tokens"}


def test_layers_that_compute_something_else_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    norm, mlp = Olmo2RMSNorm.forward, Olmo2MLP.forward
    monkeypatch.setattr(Olmo2RMSNorm, "forward", lambda self, x: 1.01 * norm(self, x))
    monkeypatch.setattr(Olmo2MLP, "forward", lambda self, x: mlp(self, x) + 0.01)
    _, names = load(make_decoder("olmo2", tmp_path))
    assert not names & {"norm", "q_norm", "mlp"}
    monkeypatch.setattr(Olmo2MLP, "forward", lambda self, x: mlp(self, x).clamp(-100, 100))
    assert "mlp" not in load(tmp_path)[1]
    assert {"gate_proj", "up_proj"} <= names


def test_halves_that_one_product_cannot_hold_are_not_stacked():
    class Halves(nn.Module):
        def __init__(self, bias: bool) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(4, 6, bias), nn.Linear(4, 6)
            self.down_proj, self.act_fn = nn.Linear(6, 4), nn.SiLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    for bias in (True, False):
        halves = Halves(bias)
        planned.plan_layers(halves, detect_platform())
        assert (getattr(halves.gate_proj, LAYER)._layer._module is halves) is bias
