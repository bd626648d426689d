"""The tables of `atom plan`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from atom_core.config import CACHE_DTYPES, CacheFormat, ConfigError
from atom_server.cli.columns import columns

if TYPE_CHECKING:
    from atom_core.models import Accelerator, ModelRequirements, Placement

# The engine's words for `--kv-cache-dtype`, and names of dtypes that are planned with too.
_DTYPES = ("float32", "bfloat16", "float8_e4m3fn")
CACHE_WORDS = (*CACHE_DTYPES, *_DTYPES)
# An encoder keeps nothing of a text.
ANY_NUMBER = "any number"


def memory_lines(
    needs: ModelRequirements,
    context: int,
    requests: int,
    *,
    memory: int | None,
    kv_cache_dtype: str | None = None,
    image_cache_bytes: int = 0,
) -> tuple[list[str], bool]:
    """A table over the formats of weights and cache, and whether any of its rows fits.

    Args:
        context: tokens of each of `requests`.
        memory: bytes; None where it is unknown.
        kv_cache_dtype: as the engine spells it; None for a row of each.
        image_cache_bytes: what is kept free for what was made of pictures.
    """
    rows = [("weights", "", "KV cache", "per token", "planned", "in all", "fits", "requests that fit")]
    any_fits = False
    for weight_format, weight_bytes in needs.weight_bytes.items():
        for cache in [cache_format(kv_cache_dtype, weight_format)] if kv_cache_dtype else needs.kv_bytes_per_token:
            per_token, each = needs.kv_bytes_per_token[cache], needs.kv_bytes(context, cache)
            total = weight_bytes + requests * each + image_cache_bytes
            room = None if memory is None else memory - weight_bytes - image_cache_bytes
            left = None if room is None else room - needs.snapshot_bytes(room)
            fits = left is not None and requests * each <= left
            any_fits |= fits
            fitting = "?" if left is None else _num_fitting(left, each)
            verdict = "?" if left is None else "yes" if fits else "no"
            sizes = (size(weight_bytes), cache.name, size(per_token), size(requests * each), size(total))
            rows.append((weight_format, *sizes, verdict, fitting))
    end = (
        "memory unknown"
        if memory is None
        else f"memory: {size(memory)}; activations and the process itself come on top"
    )
    planned = f"planned: {requests} x {context} tokens"
    remarks = [*_image_remark(image_cache_bytes), *_snapshot_remark(needs), *_remarks(needs, needs.weight_bytes)]
    return [planned, "", *columns(rows), "", end, *remarks], any_fits


def _num_fitting(num_bytes: int, each: int) -> str:
    """How many requests of so many bytes `each` fit."""
    return str(max(0, num_bytes) // each) if each else ANY_NUMBER


def accelerator_lines(
    needs: ModelRequirements,
    accelerators: Sequence[Accelerator],
    *,
    weights: str,
    kv_cache_dtype: str,
    contexts: Sequence[int],
    flags: str,
    image_cache_bytes: int = 0,
) -> tuple[list[str], bool]:
    """A row for each accelerator and number of them that holds the model, and whether there is any.

    Args:
        accelerators: the accelerators that hold weights alike.
        weights: their number format.
        kv_cache_dtype: that of the cache, as the engine spells it.
        contexts: lengths of requests, a column each with how many fit at once.
        flags: what starts the model on several of them.
        image_cache_bytes: what each keeps free for what was made of pictures.

    Raises:
        ConfigError: a format that the model has no plan for.
    """
    from atom_core.models import DEVICE_COUNTS, place

    check_format("--weights", weights, needs.weight_bytes)
    cache = cache_format(kv_cache_dtype, weights)
    per_request = [f"requests of {context}" for context in contexts]
    rows = [("accelerator", "memory", "devices", "weights each", "room each", "longest request", *per_request)]
    too_small: list[str] = []
    for accelerator in accelerators:
        tried = [
            place(needs, accelerator, count, weight_format=weights, cache=cache, image_cache_bytes=image_cache_bytes)
            for count in DEVICE_COUNTS
        ]
        fitting = [placement for placement in tried if placement is not None and placement.fits]
        rows += [_row(placement, contexts) for placement in fitting]
        if not fitting:
            too_small.append(accelerator.name)
    lines = [
        f"weights {weights}, {size(needs.weight_bytes[weights])}; KV cache {cache.name}, "
        f"{size(needs.kv_bytes_per_token[cache])} a token",
        "",
    ]
    if len(rows) > 1:
        lines += [*columns(rows), ""]
    if too_small:
        lines += [f"too large for {max(DEVICE_COUNTS)} of {', '.join(too_small)}"]
    lines += [
        f"several devices: tensor parallel, by {flags} of `atom serve`",
        "a tenth of each memory is left for activations; makers' gigabytes",
        *_image_remark(image_cache_bytes),
        *_snapshot_remark(needs),
        *_remarks(needs, [weights], accelerators[0]),
    ]
    return lines, len(rows) > 1


def _row(placement: Placement, contexts: Sequence[int]) -> tuple[str, ...]:
    accelerator = placement.accelerator
    return (
        accelerator.name,
        f"{accelerator.memory_bytes // 10**9} GB",
        str(placement.num_devices),
        size(placement.weight_bytes),
        size(placement.cache_bytes),
        str(placement.longest_request),
        *(str(placement.num_requests(one)) if placement.bytes_of_request(one) else ANY_NUMBER for one in contexts),
    )


def _image_remark(num_bytes: int) -> list[str]:
    """What the cache of pictures takes from the requests; their tower is among the weights."""
    return [f"{size(num_bytes)} are left for what was made of pictures (--image-cache-memory)"] if num_bytes else []


def _snapshot_remark(needs: ModelRequirements) -> list[str]:
    """What a prefix cache of layers with states takes from the requests."""
    return (
        ["a quarter of the cache's room is left for states behind cached prefixes"] if needs.snapshot_bytes(4) else []
    )


def _remarks(needs: ModelRequirements, formats: Collection[str], accelerator: Accelerator | None = None) -> list[str]:
    """Remarks below the rows: which of `formats` the checkpoint has, in which one it is held, and why."""
    platform = accelerator and accelerator.platform
    published, held = needs.published_format, needs.held_format(platform)
    if published is None:
        return []
    others = ", ".join(name for name in formats if name not in (published, held))
    lines = [f"{others}: the same model from a checkpoint in bfloat16"] if others else []
    if published in needs.weight_bytes and held != published:
        in_files = (
            "the size of the files" if published in formats else f"{size(needs.weight_bytes[published])} in the files"
        )
        reason = needs.why_not_kept(platform)
        lines.append(f"{published}: {in_files}; this version holds these weights in {held}, since {reason}")
    return lines


def cache_format(word: str, weight_format: str) -> CacheFormat:
    """How numbers are cached; "auto" is the dtype of activations: float32 for weights in float32, else bfloat16."""
    from atom_core.models import PLANNED_FLOAT8

    if word in _DTYPES:
        return CacheFormat(word)
    return CacheFormat.asked(word, "float32" if weight_format == "float32" else "bfloat16", PLANNED_FLOAT8)


def check_format(flag: str, value: str, allowed: Collection[str]) -> None:
    """Refuse a format that is none of the model's.

    Raises:
        ConfigError: it names the flag, and what is allowed.
    """
    if value not in allowed:
        raise ConfigError(f"{flag} {value!r}: this model can be planned with {', '.join(allowed)}")


def size(num_bytes: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"
