"""Writes what one rank of each model in our recipes would run on AMD Instinct, kernel by kernel, into docs/amd.

PYTHONPATH=.:tests/support python tools/amd_recipes.py

Models are built from published configs, as one of so many ranks would build them, with AITER's emulator in the place of
AITER. No weight is read and nothing is run.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.activation.rounded import ROUNDED_GATED_ACTIVATION
from atom_kernels.aiter.all_reduce import MAX_BYTES, NORMED_GROUP_SIZES
from atom_kernels.mixers import select_mixer
from atom_kernels.moe.ops import MOE_ROUTE
from atom_kernels.norm import ADD_RMS_NORM, ROUNDED_ADD_RMS_NORM
from atom_kernels.operator import Op
from atom_kernels.platform import Platform, use_platform
from atom_kernels.protocols import AiterMemory, CacheFormat, SingleRank
from atom_kernels.reduce import ALL_REDUCE_ROUNDED_ADD_RMS_NORM, RoundedAllReduceNormProblem
from atom_kernels.select import plans_remembered, select
from atom_models.build_context import BuildContext
from atom_models.checkpoint import open_checkpoint
from atom_models.groups import UNSHARED
from atom_models.layers import GatedActivation, RMSNorm
from atom_models.layers.loadable import loadable
from atom_models.layers.mixture.moe import Router
from atom_models.model import construct_model, mixer_layers, stored_quantization
from atom_models.requirements.layer_weights import kind_of_names
from atom_models.requirements.sharing import OneOf, groups_of
from emulated_aiter import emulated_aiter
from published_catalog import CHECKPOINTS
from published_configs import FOLDER as CONFIGS

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "amd"
ARCHES = ("gfx942", "gfx950")
# GLM-5's config is kept without what says how its float8 checkpoint is stored: as DeepSeek-V3.2's, we take it.
_FP8_BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": [f"model.layers.{layer}.self_attn.indexer.weights_proj" for layer in range(78)],
}


@dataclass(frozen=True)
class Recipe:
    """A model as it would be served.

    Attributes:
        model: what the command names.
        config: the published config that is kept of it, or the name of a checkpoint in the catalog.
        flags: the options of `atom serve` that decide kernels.
    """

    model: str
    config: str
    num_ranks: int = 1
    spreads_experts: bool = False
    cache: str = "fp8"

    @property
    def flags(self) -> str:
        spread = " --enable-expert-parallel" if self.spreads_experts else ""
        return f"-tp {self.num_ranks}{spread} --kv_cache_dtype {self.cache}"


RECIPES = {
    "kimi-k2-thinking-mxfp4-tp4": Recipe("amd/Kimi-K2-Thinking-MXFP4", "amd/Kimi-K2-Thinking-MXFP4", 4),
    "deepseek-r1-fp8-tp8": Recipe("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1", 8),
    "qwen3-235b-fp8-tp8-ep": Recipe(
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B-FP8", 8, spreads_experts=True
    ),
    "glm-5-fp8-tp8": Recipe("zai-org/GLM-5-FP8", "glm-5", 8),
    "gpt-oss-120b-mxfp4-tp1": Recipe("openai/gpt-oss-120b", "openai/gpt-oss-120b", cache="auto"),
}


def page(name: str, arch: str) -> str:
    """What a file says of one recipe."""
    return "\n".join(_lines(RECIPES[name], arch)) + "\n"


def path_of(name: str, arch: str) -> Path:
    """Where that is kept."""
    return FOLDER / f"recipe-{name}-{arch}.txt"


def _lines(recipe: Recipe, arch: str) -> Iterator[str]:
    platform = Platform.rocm(arch, release="git")
    with emulated_aiter("git", arch), use_platform(platform), plans_remembered():
        model = _build(recipe, platform)
        yield f"{recipe.model} {recipe.flags} on {platform.name} ({arch}), AITER from git: the first rank, not run"
        yield from _matrices(model)
        yield from _caches(model, platform)
        if recipe.num_ranks in NORMED_GROUP_SIZES:
            yield from _sums(_rounded(model, RMSNorm), recipe.num_ranks, platform)
        for title, op, problems in (
            ("routing", MOE_ROUTE, [one.problem for one in model.modules() if isinstance(one, Router)]),
            ("norms", ADD_RMS_NORM, _not_rounded(model, RMSNorm)),
            ("norms that round their rows", ROUNDED_ADD_RMS_NORM, _rounded(model, RMSNorm)),
            ("activations", GATED_ACTIVATION, _not_rounded(model, GatedActivation)),
            ("activations that round their rows", ROUNDED_GATED_ACTIVATION, _rounded(model, GatedActivation)),
        ):
            yield from _others(title, op, problems, platform)


class _Sharing(SingleRank):
    """The first of ranks that share memory of AITER, of which a plan is asked and nothing is run."""

    def __init__(self, size: int) -> None:
        self.size, self.peers = size, AiterMemory(0, size, group=0, buffer=0, max_bytes=MAX_BYTES)


def _sums(rounded: Sequence[Any], num_ranks: int, platform: Platform) -> Iterator[str]:
    yield "\nsums over ranks"
    yield "  aiter (AITER all_reduce)"
    yield "  aiter (AITER fused_allreduce_rmsnorm), behind such a sum in the place of the norms below"
    problems = [RoundedAllReduceNormProblem(one, _Sharing(num_ranks)) for one in rounded]
    rows = [select(ALL_REDUCE_ROUNDED_ADD_RMS_NORM, problem, platform).rows[0] for problem in problems]
    for name in dict.fromkeys(f"{row.backend} ({row.implementation})" for row in rows if row.backend == "aiter"):
        yield f"  {name}, in the place of those that round their rows"


def _build(recipe: Recipe, platform: Platform) -> nn.Module:
    groups = groups_of(UNSHARED, OneOf(0, recipe.num_ranks))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if recipe.config in CHECKPOINTS:
            CHECKPOINTS[recipe.config].write_config(folder)
        else:
            config = json.loads((CONFIGS / f"{recipe.config}.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"quantization_config": _FP8_BLOCKS}))
        checkpoint = open_checkpoint(folder)
        context = BuildContext(
            platform=platform,
            dtype=torch.bfloat16,
            quantization=stored_quantization(checkpoint),
            cache=CacheFormat.asked(recipe.cache, "bfloat16", platform.float8),
            # Tables of angles need not be long.
            max_model_len=1024,
            groups=groups.spreading_experts() if recipe.spreads_experts else groups,
        )
        return construct_model(checkpoint, context)


def _matrices(model: nn.Module) -> Iterator[str]:
    """Matrices that are held alike, in the order of the model."""
    yield "\nmatrices"
    counts: Counter[tuple[str, ...]] = Counter()
    for weights in (weights for layer in loadable(model) for weights in layer.weights()):
        if weights.held is not None:
            held = weights.held()
            layouts, kernels = ", ".join(held.layouts), ", then ".join(held.implementations)
            row = (kind_of_names(weights.names), held.held, f"{held.num_bytes / 2**20:.1f}", layouts, kernels)
            counts[row] += 1
    for (kind, form, size, layouts, kernels), count in counts.items():
        yield f"  {count} x {kind}: {form}, {size} MiB [layout {layouts}]"
        yield f"    {kernels}"


def _caches(model: nn.Module, platform: Platform) -> Iterator[str]:
    """Layers with a cache that are alike; bytes are those of a block of tokens."""
    yield "\ncaches"
    for problem, count in Counter(layer.problem for layer in mixer_layers(model).values()).items():
        plan = select_mixer(problem, platform)
        kernels = ", ".join(plan.kernels) or "kernels of its own"
        yield f"  {count} x {problem.name}: {plan.layout.block_bytes} bytes a block [layout {plan.layout.name}]"
        yield f"    {plan.backend} ({kernels})"


def _not_rounded(model: nn.Module, kind: type[RMSNorm | GatedActivation]) -> list[object]:
    layers = [one for one in model.modules() if isinstance(one, kind)]
    return [one.problem for one in layers if one.rounded is None and one.problem is not None]


def _rounded(model: nn.Module, kind: type[RMSNorm | GatedActivation]) -> list[object]:
    return [one.rounded for one in model.modules() if isinstance(one, kind) and one.rounded is not None]


def _others(title: str, op: Op, problems: Sequence[object], platform: Platform) -> Iterator[str]:
    """What has no matrix."""
    if not problems:
        return
    yield f"\n{title}"
    kernels = [
        ", then ".join(f"{row.backend} ({row.implementation})" for row in select(op, problem, platform).rows)
        for problem in problems
    ]
    for name in dict.fromkeys(kernels):
        yield f"  {kernels.count(name)} x {name}"


def write() -> None:
    """Write every file anew."""
    for name in RECIPES:
        for arch in ARCHES:
            path_of(name, arch).write_text(page(name, arch), encoding="utf-8")
            print(f"wrote {path_of(name, arch)}")


if __name__ == "__main__":
    write()
