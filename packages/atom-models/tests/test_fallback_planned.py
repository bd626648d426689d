"""Layers of transformers run by our operators where they compute the same, and as they are where they do not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom_kernels.platform import detect_platform
from atom_kernels.recording import record
from atom_models import load_model

pytest.importorskip("transformers")

import torch
import transformers
from torch import nn
from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP, Olmo2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

from atom_models.fallback import planned, trial
from atom_models.fallback.attention import LAYER
from atom_models.fallback.step_angles import AngleLayout, AngleTables
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
        ("gemma2", {"mlp", "input_layernorm", "norm", "o_proj", "lm_head", "self_attn"}),
        ("qwen3", {"mlp", "input_layernorm", "norm", "o_proj", "lm_head", "self_attn"}),
        ("cohere", {"mlp", "self_attn"}),
        ("glm4", {"self_attn"}),
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


@pytest.mark.parametrize(
    ("model_type", "beside"), [("olmo2", {"embed_tokens"}), ("qwen3", {"embed_tokens", "q_norm", "k_norm"})]
)
def test_a_plan_holds_the_weights_once(model_type: str, beside: set[str], tmp_path: Path):
    loaded, _ = load(make_decoder(model_type, tmp_path))
    held = [name for name, one in loaded.model.named_parameters() if not one.is_meta]
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in held} == beside


@pytest.mark.parametrize(
    ("model_type", "is_alone"), [("qwen3", True), ("gpt_neox", True), ("gemma2", False), ("granite", False)]
)
def test_a_head_is_run_alone_where_nothing_is_done_to_its_results(model_type: str, is_alone: bool, tmp_path: Path):
    loaded, _ = load(make_decoder(model_type, tmp_path))
    calls: list[int] = []
    loaded.model.causal.register_forward_hook(lambda *_: calls.append(1))
    loaded.logits([[5, 6, 7]])
    assert (calls == []) is is_alone


def test_a_head_with_more_results_than_words_is_not_run_alone():
    class Cut(nn.Module):
        def __init__(self, vocab_size: int) -> None:
            super().__init__()
            self.config: Any = transformers.LlamaConfig(vocab_size=vocab_size)
            self.head = nn.Linear(4, 32)

        def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=self.head(inputs_embeds)[..., : self.config.vocab_size])

    for vocab_size in (32, 30):
        causal = Cut(vocab_size)
        assert (planned.head_alone(causal, causal.head) is not None) is (vocab_size == 32)


def scaled_answer(module: Any, *given: Any, **named: Any) -> Any:
    out, weights = _ATTENTION(module, *given, **named)
    return 1.01 * out, weights


def clipped_queries(module: Any, hidden_states: Any, *given: Any, **named: Any) -> Any:
    return _ATTENTION(module, hidden_states.clamp(-50, 50), *given, **named)


def by_position(module: Any, hidden_states: Any, *given: Any, position_ids: Any = None, **named: Any) -> Any:
    later = 1 if position_ids is None else 1 + (position_ids // 8192)[..., None]
    return _ATTENTION(module, hidden_states * later, *given, **named)


_ATTENTION: Any = Qwen3Attention.forward


@pytest.mark.parametrize("forward", [scaled_answer, clipped_queries, by_position])
def test_attention_that_does_more_stays_as_it_is(forward: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def changed(
        self: Any, hidden_states: Any, position_embeddings: Any, attention_mask: Any = None, **given: Any
    ) -> Any:
        return forward(self, hidden_states, position_embeddings, attention_mask, **given)

    monkeypatch.setattr(Qwen3Attention, "forward", changed)
    _, names = load(make_decoder("qwen3", tmp_path))
    assert "self_attn" not in names
    assert {"q_proj", "k_norm"} <= names


def test_angles_that_no_table_holds_are_used_as_transformers_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    angles: Any = Qwen3RotaryEmbedding.forward

    def lopsided(self: Any, *given: Any, **named: Any) -> Any:
        cos, sin = angles(self, *given, **named)
        return cos * torch.linspace(1, 2, cos.shape[-1], device=cos.device), sin

    monkeypatch.setattr(Qwen3RotaryEmbedding, "forward", lopsided)
    folder, prompt = make_decoder("qwen3", tmp_path), [*range(5, 45)]
    loaded, names = load(folder)
    assert "self_attn" in names
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = theirs(torch.tensor([prompt])).logits[0]
    assert (loaded.logits([prompt])[0] - logits).abs().max() <= 1e-4 * (logits.max() - logits.min())


class Angles(nn.Module):
    """A rotary module, which counts the positions that it is asked for."""

    def __init__(self, layout: AngleLayout, of_row: bool = False) -> None:
        super().__init__()
        self.layout, self.of_row, self.asked = layout, of_row, 0

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked += position_ids.numel()
        followed = torch.arange(position_ids.shape[-1])[None] if self.of_row else position_ids
        once = followed[..., None] * torch.tensor([1.0, 0.1, 0.01])
        return self.layout.twice(once.cos()), self.layout.twice(once.sin())


@pytest.mark.parametrize("layout", AngleLayout)
def test_angles_of_a_step_are_rows_of_a_table_which_a_layer_may_unpack_as_well(layout: AngleLayout):
    module, x, positions = Angles(layout), torch.zeros(1, 3, 8), torch.tensor([[7, 2, 5]])
    tables = AngleTables(module, num_positions=5000)
    angles = tables.forward(x, positions)
    assert angles.positions.tolist() == [7, 2, 5]
    [(found, table)] = angles.tables.items()
    assert (found, table.shape, table.dtype) == (layout, (5000, 6), torch.float32)
    cos, sin = module(x, torch.arange(5000)[None])
    assert torch.equal(table, torch.cat((layout.once(cos), layout.once(sin)), -1)[0])
    asked = module.asked
    work = record(lambda: tables.forward(x, positions))
    assert (module.asked, work.why_not) == (asked, None)
    assert all(map(torch.equal, work.outputs, module(x, positions)))


def test_angles_of_rows_that_are_not_their_positions_are_in_no_table():
    x, positions = torch.zeros(1, 3, 8), torch.tensor([[7, 2, 5]])
    counting = AngleTables(Angles(AngleLayout.HALVES, of_row=True), num_positions=9)
    assert isinstance(counting.forward(x, positions), tuple)
    tables = AngleTables(Angles(AngleLayout.HALVES), num_positions=9)
    assert isinstance(tables.forward(x, positions.expand(2, 3)), tuple)
    assert isinstance(tables.forward(x, positions.expand(3, 1, 3)), tuple)


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
