"""The installed MORI: whether there is one that can serve, and its parts, once their signatures are those we know."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_kernels.mori.functions import CONFIG, FIELDS, JOIN, JOIN_PARAMETERS, METHODS, OP

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

DISTRIBUTIONS = ("amd-mori", "amd-mori-nightly")
# Its kernels within a node, which is all that engines that share experts have.
MAX_RANKS = 8
DTYPES = ("bfloat16", "float32")


class MoriUnusableError(RuntimeError):
    """There is no MORI, or not one that we can call; the message says why, in one line."""


@dataclass(frozen=True)
class Mori:
    """An imported MORI: its operator, the operator's config, and what joins ranks by torch.distributed's group."""

    op: Callable[..., Any]
    config: Callable[..., Any]
    join: Callable[[str], object]


def installed_mori() -> str | None:
    """The distribution and its version; None where there is none. Nothing is imported."""
    for name in DISTRIBUTIONS:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def why_not_mori(platform: Platform, *, num_ranks: int, dtype: str) -> str | None:
    """Why MORI cannot carry rows of `dtype` between so many ranks of a node; None if it can."""
    if platform.vendor != "amd":
        return f"MORI is for AMD GPUs, this is {platform.name}"
    if installed_mori() is None:
        return f"the distribution {DISTRIBUTIONS[0]} is not installed, see docs/amd.md"
    if num_ranks > MAX_RANKS:
        return f"MORI's kernels within a node are for {MAX_RANKS} GPUs at most, not {num_ranks}"
    if dtype not in DTYPES:
        return f"MORI sums rows of {' and '.join(DTYPES)}, not of {dtype}"
    return None


def import_mori() -> Mori:
    """MORI, imported, with the signatures that we call it by.

    Raises:
        MoriUnusableError: it cannot be imported, or takes something else.
    """
    version = installed_mori() or "MORI"
    try:
        ops, shmem = importlib.import_module("mori.ops"), importlib.import_module("mori.shmem")
        op, config, join = getattr(ops, OP), getattr(ops, CONFIG), getattr(shmem, JOIN)
    except (ImportError, AttributeError, OSError) as error:
        raise MoriUnusableError(f"{version} cannot be used: {' '.join(str(error).split())}") from error
    for name, expected in METHODS.items():
        _check(f"{version}: {OP}.{name}", getattr(op, name), ("self", *expected))
    _check(f"{version}: {JOIN}", join, JOIN_PARAMETERS)
    _check_fields(f"{version}: {CONFIG}", config)
    return Mori(op, config, join)


def _check(what: str, function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    """We pass these by position, and nothing else."""
    found = list(inspect.signature(function).parameters.values())
    needed = [one.name for one in found[len(expected) :] if one.default is inspect.Parameter.empty]
    if tuple(one.name for one in found[: len(expected)]) != expected or needed:
        names = ", ".join(one.name for one in found)
        raise MoriUnusableError(f"{what} takes {names}; we know it with {', '.join(expected)}")


def _check_fields(what: str, config: Callable[..., Any]) -> None:
    """We pass these by name, and nothing else."""
    found = inspect.signature(config).parameters
    unknown = [name for name in FIELDS if name not in found]
    needed = [name for name, one in found.items() if name not in FIELDS and one.default is inspect.Parameter.empty]
    if unknown or needed:
        lacks, needs = ", ".join(unknown) or "nothing", ", ".join(needed) or "nothing else"
        raise MoriUnusableError(f"{what} lacks {lacks} of what we pass, and needs {needs}")
