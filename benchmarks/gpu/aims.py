"""The goals of the GPU path on an H100 beside vLLM: what must be reached, and what is aimed for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks.gpu.hosts import judged_ratio


class Aim(NamedTuple):
    """Bounds of our value, or of our value over the peer's: at most, or at least for rates."""

    must: float
    aim: float
    over_peer: bool = True


_DECODES = {
    "qwen3-0.6b": {1: (0.70, 0.50), 32: (0.90, 0.70), 128: (0.97, 0.85)},
    "qwen3-8b": {1: (0.93, 0.83), 32: (0.95, 0.85), 128: (0.97, 0.88)},
    "qwen3-8b-fp8": {1: (0.80, 0.65), 32: (0.85, 0.75), 128: (0.92, 0.85)},
    "qwen3-30b-a3b": dict.fromkeys((1, 32, 128), (1.05, 0.90)),
    "gpt-oss-20b": dict.fromkeys((1, 32, 128), (1.05, 0.90)),
    "qwen3-next-80b": dict.fromkeys((1, 32, 128), (1.0, 0.85)),
}
# Contexts of 3,000, and prompts beyond 8k.
_LONGER_DECODES = {model: {16: (1.0, 0.90)} for model in ("qwen3-8b", "qwen3-14b")}
_LONG_PROMPTS = dict.fromkeys((20000, 32768), (1.0, 0.90))
_PREFILLS = {
    "qwen3-0.6b": {1024: (0.5, 0.25), 8192: (1.1, 0.8)},
    "qwen3-8b": {1024: (1.0, 0.85), 8192: (1.1, 0.9), **_LONG_PROMPTS},
    "qwen3-14b": _LONG_PROMPTS,
    "qwen3-next-80b": dict.fromkeys((1024, 8192), (1.0, 0.85)),
}
# What decode steps of packed weights must be beside ours in bfloat16, by batch; the plain model's name begins theirs.
_OVER_PLAIN = {
    "qwen2.5-7b-fp8": dict.fromkeys((1, 5, 48, 96), Aim(1.0, 1.0)),
    "qwen2.5-7b-fp8-blocks": dict.fromkeys((1, 5, 48, 96), Aim(1.0, 1.0)),
    "llama-3.1-8b-int4": {1: Aim(1 / 1.7, 1 / 2.4), 16: Aim(1 / 1.5, 1 / 1.5), 64: Aim(1.0, 1.0)},
    "qwen3-30b-a3b-fp8": dict.fromkeys((1, 32, 128), Aim(1 / 1.3, 1 / 1.3)),
}
# And of packed experts beside their floor.
_OVER_FLOOR = {"gpt-oss-20b-mxfp4": {1: Aim(1.6, 1.25), 32: Aim(1.5, 1.5), 128: Aim(1.5, 1.5)}}
# A step over a cache in fp8 beside one over a plain cache, where most of the time goes into reading it.
_FP8_CACHES = ("kv_cache_dtype=fp8", "kv_cache_dtype=fp8_per_token_head")
_FP8_CACHE, _LARGE_CACHE = Aim(1 / 1.4, 1 / 1.4), (128, 4096)
# Tokens of the KV cache, where both engines are given the same share of the memory.
_CACHES: dict[str, tuple[float, float]] = dict.fromkeys(("qwen3-0.6b", "qwen3-8b", "qwen3-14b"), (0.98, 1.02))
_OFFLINE = {"qwen3-0.6b": (1.0, 1.15), "qwen3-8b": (1.0, 1.10), "qwen3-8b-fp8": (1.08, 1.15)}
# The share of the copy rate, at the shape of DeepSeek-V2-Lite.
LATENT_DECODE = Aim(0.60, 0.75, over_peer=False)
# Tokens a second with drafts over those without, by batch; and making drafts over reading their weights.
_SPECULATION = {1: (1.5, 1.9), 32: (1.1, 1.3), 128: (0.97, 1.0)}
_DRAFTING = Aim(1.5, 1.1, over_peer=False)
# Speed with a draft model that is never right over that without.
_NEVER_RIGHT = Aim(0.97, 1.0, over_peer=False)
# The first seconds of service, by what the start found compiled: milliseconds until the last of the first tokens, where
# no more streams are open than run at once, and the share of the steady throughput.
_MOST_STREAMS = 128
_FIRST_TOKENS = {"warm": (500.0, 300.0), "cold": (2000.0, 500.0)}
_SHARES_OF_STEADY = {"warm": (90.0, 97.0)}
_STARTS = {"warm": (15.0, 8.0), "cold": (40.0, 20.0)}


def aim_of(model: str, about: dict[str, Any]) -> Aim | None:
    """What is wanted of a figure (see `Figure.about`); None where nothing is."""
    model, kind = model.partition(" ")[0], about.get("kind")
    bounds: tuple[float, float] | None = None
    if "with" in about:
        return None
    if kind == "decode":
        decodes = {1024: _DECODES, 3000: _LONGER_DECODES}.get(about["context"], {})
        bounds = decodes.get(model, {}).get(about["batch"])
    elif kind == "prefill":
        bounds = _PREFILLS.get(model, {}).get(about["tokens"])
    elif kind == "cache":
        bounds = _CACHES.get(model)
    elif kind == "offline":
        bounds = _OFFLINE.get(model)
    elif kind == "start" and model == "qwen3-0.6b" and about["caches"] in _STARTS:
        must, aim = _STARTS[about["caches"]]
        return Aim(must, aim, over_peer=False)
    elif kind == "speculation" and about["batch"] in _SPECULATION:
        return Aim(*_SPECULATION[about["batch"]], over_peer=False)
    elif kind == "drafting":
        return _DRAFTING
    elif kind == "never right":
        return _NEVER_RIGHT
    elif kind == "served":
        first_tokens = _FIRST_TOKENS if about["streams"] <= _MOST_STREAMS else {}
        wanted = {"first token, longest": first_tokens, "share of steady": _SHARES_OF_STEADY}.get(about["what"], {})
        return Aim(*wanted[about["caches"]], over_peer=False) if about["caches"] in wanted else None
    elif kind == "idle" and about["batch"] == 32:
        return Aim(8.0, 3.0, over_peer=False)
    return None if bounds is None else Aim(bounds[0], bounds[1])


def beside_ours(results: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Aim, float, str]]:
    """Decode steps that are held to others of ours, or to their floor: the aim, what was found, and beside what."""
    steps = [result for result in results if result["about"].get("kind") == "decode"]
    medians = {
        (result["model"], result["figure"]): result["engines"]["atom"]["median"]
        for result in steps
        if "median" in result["engines"].get("atom", {})
    }
    for result in steps:
        model, figure, about = result["model"], result["figure"], result["about"]
        ours, batch, setting = medians.get((model, figure)), about["batch"], about.get("with")
        if ours is None:
            continue
        if setting in _FP8_CACHES and (batch, about["context"]) == _LARGE_CACHE:
            plain = medians.get((model, figure.removesuffix(f", {setting}")))
            if plain is not None:
                yield result, _FP8_CACHE, ours / plain, "a plain cache"
        elif setting is None and about["context"] == 1024:
            if (aim := _OVER_PLAIN.get(model, {}).get(batch)) is not None:
                plain = medians.get((_plain_name(model), figure))
                if plain is not None:
                    yield result, aim, ours / plain, "bfloat16"
            if (aim := _OVER_FLOOR.get(model, {}).get(batch)) is not None and "floor" in result:
                yield result, aim, ours / result["floor"], "the floor"


def _plain_name(model: str) -> str:
    """The name of the model whose weights are plain: what is left of a packed one's without its format."""
    while model in _OVER_PLAIN:
        model = model.rpartition("-")[0]
    return model


def found_for(result: dict[str, Any], aim: Aim) -> float | None:
    """The value that the aim is about; None where it was not measured."""
    return judged_ratio(result) if aim.over_peer else result["engines"].get("atom", {}).get("median")


def verdict(found: float, aim: Aim) -> str:
    """Whether it is enough, in words."""
    more_is_better = aim.aim > aim.must
    misses = [(bound - found if more_is_better else found - bound) / bound for bound in (aim.must, aim.aim)]
    if misses[1] <= 0:
        return "aim met"
    if misses[0] <= 0:
        return f"met; {misses[1]:.0%} off the aim"
    missed = f"{misses[0]:.0%}" if misses[0] >= 0.01 else f"{misses[0]:.1%}"
    return f"**missed** by {missed}; {misses[1]:.0%} off the aim"
