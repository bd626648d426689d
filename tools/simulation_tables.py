"""Writes into docs/simulating.md how far simulated steps are from measured and published ones, and the recipes' steps.

PYTHONPATH=.:tests/support python tools/simulation_tables.py
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atom_kernels.protocols import CacheFormat
from atom_models.checkpoint import open_checkpoint
from atom_models.requirements import ModelRequirements, model_requirements
from atom_models.simulation import Prediction, Ranks, find_system, predict
from benchmarks.gpu.models import write_config
from published_configs import NAMES, write_published_config

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "simulating.md"
# What was measured, by file, and on which system.
FILES = {
    "gpu-nvidia-h100-80gb-hbm3.json": "8xH100",
    "tensor-parallel-nvidia-h100-80gb-hbm3.json": "8xH100",
    "tensor-parallel-beside-vllm-nvidia-h200.json": "8xH200",
}
NEAR = 0.25
# Requests have, in the middle of a measured decode, so many more tokens than at its beginning.
_DECODED = 36
_BFLOAT16, _FLOAT8 = CacheFormat("bfloat16"), CacheFormat("float8_e4m3fn")

# Why some figures are further off than `NEAR`: by model and the beginning of a figure.
REASONS = {
    ("qwen3-0.6b", "prefill of 1024"): "short products of small matrices reach less of the GPU",
    ("gpt-oss-20b (8 layers)", "prefill of 1024"): "128 tokens an expert: neither reads nor products are at their best",
    ("deepseek-v2-lite", "prefill of 1024"): "96 tokens an expert: likewise",
    ("qwen3-next-80b (8 layers)", "prefill of 8192"): "the delta rule in chunks, which is not simulated as such",
    ("gpt-oss-120b-mxfp4", "decode step, batch 32"): "the random weights of the benchmark choose few of 128 experts",
    ("llama-3.1-8b-int4", "decode step, batch 16"): "4 bits are decoded slower for more rows: at batch 1 it is 9 % off",
    (
        "qwen2.5-7b-fp8-blocks",
        "decode step, batch 96",
    ): "tiles are slower than scales of rows, which take 6.64 ms",
    ("qwen3-8b (tensor parallel 2)", "decode step, batch 32"): "sums were NCCL's then",
}


@dataclass(frozen=True)
class Published:
    """Seconds between tokens that others have published, of closed loops of prompts and outputs of one length."""

    source: str
    model: str
    system: str
    ranks: Ranks
    milliseconds: dict[int, float]
    prompt: int = 1024
    output: int = 1024
    weights: str | None = None
    cache: CacheFormat = _FLOAT8
    reason: str = ""


_EXPERTS_APART = Ranks(8, spread_experts=True)
_UNIFORM = "simulated routing is uniform, so that every expert is read; texts choose fewer"
_QUICKER = "in one run of `gpu-nvidia-h100-80gb-hbm3.json` vLLM took 4.69 ms, and this engine 3.71"
_SLOW = "that engine was at 35 to 48 % of what its memory allows"
_LATER = "published of GLM-5.2, most of whose layers have no index of their own: fewer kernels"
_PLAIN = Published("vLLM 0.30", "qwen3-8b", "8xH100", Ranks(), {}, 128, cache=_BFLOAT16)
PUBLISHED = (
    replace(_PLAIN, milliseconds={1: 6.86, 32: 8.11, 128: 12.0, 256: 18.1}),
    replace(_PLAIN, model="qwen3-8b-fp8", milliseconds={1: 4.66, 32: 6.03, 128: 10.16, 256: 16.1}, reason=_QUICKER),
    Published("ATOM", "deepseek-r1", "8xMI300X", Ranks(8), {128: 28.8, 256: 40.8}, reason=_UNIFORM),
    Published("ATOM in vLLM", "deepseek-r1", "8xMI355X", Ranks(8), {4: 11.2, 16: 13.5, 64: 21.3}),
    Published("ATOM", "kimi-k2", "8xMI355X", Ranks(4), {4: 11.7, 128: 36.8}, weights="mxfp4"),
    Published("ATOM", "qwen3-235b-a22b", "8xMI355X", _EXPERTS_APART, {128: 16.5, 256: 20.6}, weights="fp8"),
    Published("vLLM 0.17", "gpt-oss-120b", "8xMI300X", Ranks(), {64: 31.4, 128: 41.3, 256: 58.3}, reason=_SLOW),
    Published("ATOM", "gpt-oss-120b", "8xMI355X", Ranks(), {16: 5.56, 128: 13.31}),
    Published("ATOM", "glm-5", "8xMI355X", Ranks(4), {1: 9.4, 64: 29.3}, weights="mxfp4", reason=_LATER),
)
# Model, system, ranks and weights of the recipes in docs/recipes, and of the first commands that ROCm/ATOM documents.
RECIPES = (
    ("qwen3-0.6b", "8xMI300X", Ranks(), None),
    ("deepseek-r1", "8xMI300X", Ranks(8), None),
    ("deepseek-r1", "8xMI355X", Ranks(8), None),
    ("qwen3-235b-a22b", "8xMI300X", _EXPERTS_APART, "fp8"),
    ("kimi-k2", "8xMI355X", Ranks(4), "mxfp4"),
    ("glm-5", "8xMI300X", Ranks(8), "fp8"),
    ("gpt-oss-120b", "8xMI300X", Ranks(), None),
    ("qwen3-next-80b", "8xMI300X", Ranks(2), None),
)


@functools.cache
def benchmarked(name: str, num_layers: int | None = None) -> ModelRequirements:
    """A model of the benchmarks, as it was measured."""
    with tempfile.TemporaryDirectory() as folder:
        return model_requirements(open_checkpoint(write_config(name, Path(folder), num_layers)))


@functools.cache
def needs_of(name: str) -> ModelRequirements:
    """A published model, or else one of the benchmarks."""
    if name not in NAMES:
        return benchmarked(name)
    with tempfile.TemporaryDirectory() as folder:
        return model_requirements(open_checkpoint(write_published_config(name, Path(folder))))


def measured_table() -> str:
    """Steps that were measured on GPUs, in milliseconds."""
    rows = [("model", "on", "figure", "measured", "predicted", "off by", "waits most for", "why")]
    offs = []
    for file, system in FILES.items():
        for result in json.loads((RESULTS / file).read_text())["results"]:
            found = _simulated(result, system)
            if found is None:
                continue
            step, measured = found.decode, result["engines"]["atom"]["median"]
            if result["about"]["kind"] == "prefill":
                step = found.prompts[result["about"]["tokens"]]
            off = step.seconds * 1e3 / measured - 1
            offs.append(abs(off))
            name = f"{found.ranks.tensor} x {system.removeprefix('8x')}"
            model = re.sub(r" \(tensor parallel \d\)", "", result["model"])
            numbers = f"{measured:.2f}", f"{step.seconds * 1e3:.2f}", f"{off:+.0%}"
            rows.append((model, name, result["figure"], *numbers, step.limit, _reason(result, off)))
    near = sum(off <= NEAR for off in offs)
    summary = f"{near} of {len(offs)} are within {NEAR:.0%}, and half within {sorted(offs)[len(offs) // 2]:.0%}."
    return f"{summary}\n\n{_markdown(rows)}"


def _simulated(result: dict[str, Any], system: str) -> Prediction | None:
    about, atom = result["about"], result["engines"].get("atom") or {}
    named = re.fullmatch(r"([\w.-]+)(?: \((?:(\d+) layers|tensor parallel (\d))\))?", result["model"])
    if not atom.get("median") or "with" in about or named is None:
        return None
    if about["kind"] not in ("decode", "prefill") or about.get("tokens", 1024) not in (1024, 8192):
        return None
    name, num_layers, ranks = named.groups()
    needs = benchmarked(name, int(num_layers) if num_layers else None)
    return predict(
        needs,
        find_system(system),
        Ranks(int(ranks or 1)),
        batch_size=about.get("batch", 1),
        context=about.get("context", 1) + _DECODED,
        weight_format=needs.published_format or "bfloat16",
        cache=_BFLOAT16,
    )


def _reason(result: dict[str, Any], off: float) -> str:
    """Why a figure is far off; empty for one that is near.

    Raises:
        KeyError: nobody has said why.
    """
    if abs(off) <= NEAR:
        return ""
    for (model, figure), reason in REASONS.items():
        if model == result["model"] and result["figure"].startswith(figure):
            return reason
    raise KeyError(f"{result['model']}, {result['figure']} is {off:+.0%} off: REASONS has to say why")


def published_table() -> str:
    """Milliseconds between tokens that others have published."""
    rows = [("model", "on", "engine", "requests", "published", "predicted", "off by", "why")]
    for one in PUBLISHED:
        needs = needs_of(one.model)
        for batch_size, published in one.milliseconds.items():
            found = _prediction(needs, one.system, one.ranks, batch_size, one.weights, one.cache, prompt=one.prompt)
            predicted = 1e3 * found.served_seconds(one.prompt, one.output)
            off = predicted / published - 1
            if abs(off) > NEAR and not one.reason:
                raise KeyError(f"{one.model} on {one.system} is {off:+.0%} off: PUBLISHED has to say why")
            on = f"{one.ranks.count} x {one.system.removeprefix('8x')}, {one.ranks.describe()}"
            numbers = f"{batch_size}", f"{published:.2f}", f"{predicted:.2f}", f"{off:+.0%}"
            rows.append((one.model, on, one.source, *numbers, one.reason if abs(off) > NEAR else ""))
    return _markdown(rows)


def recipes_table() -> str:
    """What the recipes would do, at a context of 4,096."""
    rows: list[tuple[str, ...]] = [
        (
            "model",
            "on",
            "weights each",
            "requests that fit",
            "prompt of 8,192",
            "requests",
            "step",
            "tokens/s a user",
            "tokens/s a GPU",
            "waits most for",
        )
    ]
    for model, system, ranks, weights in RECIPES:
        for batch_size in (1, 32, 256):
            found = _prediction(needs_of(model), system, ranks, batch_size, weights, _FLOAT8, context=4096)
            first = (
                model,
                f"{ranks.count} x {system.removeprefix('8x')}, {ranks.describe()}",
                f"{found.weight_bytes / 1e9:.1f} GB",
                f"{found.num_requests:,}",
                f"{found.prompts[8192].seconds * 1e3:.0f} ms",
            )
            step = f"{found.decode.seconds * 1e3:.1f} ms"
            speeds = f"{found.user_tokens:.0f}", f"{found.device_tokens:,.0f}"
            rows.append((*first, str(batch_size), step, *speeds, found.decode.limit))
    return _markdown(rows)


def _prediction(
    needs: ModelRequirements,
    system: str,
    ranks: Ranks,
    batch_size: int,
    weights: str | None,
    cache: CacheFormat,
    *,
    context: int = 0,
    prompt: int = 1024,
) -> Prediction:
    """By default in the middle of an output that is as long as the longest prompts."""
    found = predict(
        needs,
        find_system(system),
        ranks,
        batch_size=batch_size,
        context=context or prompt + 512,
        weight_format=weights or needs.published_format or "bfloat16",
        cache=cache,
        prompts=(prompt, 8192),
    )
    if found is None:
        raise ValueError(f"{ranks.describe()} ranks cannot share it")
    return found


def _markdown(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


TABLES = {"measured": measured_table, "published": published_table, "recipes": recipes_table}


def rendered(text: str, names: Iterable[str] = tuple(TABLES)) -> str:
    """The page with those tables between their marks."""
    for name in names:
        begin, end = f"<!-- {name}: begin (tools/simulation_tables.py) -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}{TABLES[name]()}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
    print(f"wrote {PAGE}")
