"""What is captured in which graph mode, and which modes are refused where."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom_core.config import CompileConfig, ConfigError, EngineArgs, EngineConfig, resolve_config
from atom_core.worker.graphs.plan import plan_graphs
from atom_core.worker.graphs.shapes import MOST_WHOLE, GraphShape
from atom_kernels.platform import detect_platform
from atom_models import open_checkpoint

REASON = "the torch backend of model.layers.0.self_attn.attn cannot be captured"
MODES = ("piecewise", "full", "full-and-piecewise")


def config_of(folder: Path, device: str = "cuda", **settings: Any) -> EngineConfig:
    platform = dataclasses.replace(detect_platform(), device=device)
    settings = {"max_num_batched_tokens": 128} | settings
    args = EngineArgs(model=str(folder), max_num_seqs=4, num_threads=1, **settings)
    return resolve_config(args, open_checkpoint(folder), platform)


def model(reason: str | None = None, *, captures_prompts: bool = True) -> Any:
    return SimpleNamespace(why_not_capturable=lambda: reason, captures_prompts=captures_prompts, tower=None)


def shapes_and_pieces(config: EngineConfig, of: Any) -> tuple[list[GraphShape], tuple[int, ...]]:
    plan = plan_graphs(config, of, weights_per_token=1000)
    return plan.shapes.all, plan.piece_sizes


DECODES = [GraphShape(4, 4), GraphShape(2, 2), GraphShape(1, 1)]
PROMPTS = [GraphShape(16, 128), GraphShape(16, 64)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", ([], ())),
        ("full", ([*PROMPTS, *DECODES], ())),
        ("piecewise", ([], (1, 2, 4, 64, 128))),
        ("full-and-piecewise", ([*PROMPTS, *DECODES], (64, 128))),
        (None, ([*PROMPTS, *DECODES], (64, 128))),
    ],
)
def test_a_mode_says_what_is_captured(mode: str | None, expected: object, tiny_llama: Path) -> None:
    assert shapes_and_pieces(config_of(tiny_llama, cudagraph_mode=mode), model()) == expected


@pytest.mark.parametrize("settings", [{"batch_invariant": True}, {"captures_prompts": False}], ids=str)
def test_prompts_that_cannot_be_captured_whole_are_captured_in_pieces(settings: Any, tiny_llama: Path) -> None:
    of = model(captures_prompts=settings.pop("captures_prompts", True))
    assert shapes_and_pieces(config_of(tiny_llama, cudagraph_mode="full", **settings), of) == (DECODES, ())
    both = config_of(tiny_llama, cudagraph_mode="full-and-piecewise", **settings)
    assert shapes_and_pieces(both, of) == (DECODES, (64, 128))


def test_attention_that_cannot_be_captured_is_left_between_graphs(tiny_llama: Path) -> None:
    plan = plan_graphs(config_of(tiny_llama), model(REASON), weights_per_token=1000)
    assert (plan.shapes.all, plan.piece_sizes) == ([], (1, 2, 4, 64, 128))
    assert plan.choices[0] == f"cudagraph_mode = piecewise: {REASON}"
    for mode in ("full", "full-and-piecewise"):
        with pytest.raises(ConfigError, match=f"{REASON}; ask for cudagraph_mode piecewise"):
            plan_graphs(config_of(tiny_llama, cudagraph_mode=mode), model(REASON), weights_per_token=1000)


def test_long_prompts_are_captured_in_pieces_alone_and_padded_little(tiny_llama: Path) -> None:
    plan = plan_graphs(config_of(tiny_llama, max_num_batched_tokens=8192), model(), weights_per_token=600_000_000)
    assert (plan.shapes.all[0], plan.piece_sizes[-1], plan.most_tokens) == (GraphShape(16, 2048), 8192, 8192)
    assert all(after <= 1.125 * size for size, after in pairwise(plan.piece_sizes) if size >= MOST_WHOLE)
    assert "prompts of up to 8192 tokens are captured too" in plan.choices[-1]


def test_large_models_have_no_prompts_captured(tiny_llama: Path) -> None:
    config = config_of(tiny_llama, cudagraph_mode="full-and-piecewise")
    assert plan_graphs(config, model(), weights_per_token=200_000_000_000).piece_sizes == ()


@pytest.mark.parametrize("mode", MODES)
def test_graphs_are_refused_where_there_is_no_gpu_or_eager_steps_are_asked_for(mode: str, tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="are for GPUs, and there is none"):
        config_of(tiny_llama, "cpu", cudagraph_mode=mode)
    with pytest.raises(ConfigError, match="enforce_eager captures no graphs"):
        config_of(tiny_llama, cudagraph_mode=mode, enforce_eager=True)


def test_eager_steps_keep_their_level(tiny_llama: Path) -> None:
    assert config_of(tiny_llama, enforce_eager=True, level=2).compile == CompileConfig(level=2)
