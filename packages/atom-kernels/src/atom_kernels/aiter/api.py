"""`AiterApi`: which functions an AITER has, with which parameters; frozen, so that `supports` may ask a platform."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atom_kernels.aiter.functions import FUNCTIONS

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

# The releases that we know: sources of v0.1.17 and later, and the only release on PyPI.
RELEASES = ("git", "pypi")
_SHIPPED = Path(__file__).with_name("parameters.json")


class Parameter(NamedTuple):
    """One parameter as AITER's source has it; `default` is its expression there, None where there is none."""

    name: str
    default: str | None = None
    keyword_only: bool = False


@dataclass(frozen=True)
class AiterApi:
    """What one AITER offers of the functions in `functions.FUNCTIONS`.

    Attributes:
        release: "git" (v0.1.17 or later) or "pypi" (0.1.7.post2): positional orders differ between these.
        version: the version of the distribution, as installed.
        functions: (our name, its parameters in AITER's order) of those that exist.
    """

    release: str
    version: str
    functions: tuple[tuple[str, tuple[Parameter, ...]], ...] = field(hash=False, repr=False)

    def parameters(self, name: str) -> tuple[Parameter, ...] | None:
        """The parameters of a function in AITER's order; None where this AITER has no such function.

        Raises:
            KeyError: `name` is not in the table of functions.
        """
        if name not in FUNCTIONS:
            raise KeyError(f"{name} is not in the table of AITER's functions")
        return _by_name(self.functions).get(name)

    def has(self, name: str, *parameters: str) -> bool:
        """Whether this AITER has `name` with all that we always pass, and with these `parameters` besides."""
        return self.why_not(name, *parameters) is None

    def why_not(self, name: str, *parameters: str) -> str | None:
        """None where `has` is true, else the reason, for `explain`."""
        there = self.parameters(name)
        if there is None:
            return f"amd-aiter {self.version} has no {name}"
        known = {parameter.name for parameter in there}
        function = FUNCTIONS[name]
        missing = [wanted for wanted in (*function.uses, *parameters) if not function.spelled(wanted, known)]
        return f"{name} of amd-aiter {self.version} takes no {', '.join(missing)}" if missing else None


def api_of(platform: Platform) -> AiterApi:
    """What the platform's AITER offers.

    Raises:
        ValueError: it has none.
    """
    if platform.aiter is None:
        raise ValueError(f"{platform.name} has no AITER")
    return platform.aiter


@functools.cache
def _by_name(
    functions: tuple[tuple[str, tuple[Parameter, ...]], ...],
) -> dict[str, tuple[Parameter, ...]]:
    return dict(functions)


@functools.cache
def known_api(release: str) -> AiterApi:
    """The API of one of `RELEASES` from the table that we ship: for simulated platforms, and checks of real ones.

    Raises:
        ValueError: another release.
    """
    if release not in RELEASES:
        raise ValueError(f"AITER's release is one of {', '.join(RELEASES)}, not {release!r}")
    table = json.loads(_SHIPPED.read_text(encoding="utf-8"))[release]
    functions = ((name, tuple(Parameter(*row) for row in rows)) for name, rows in sorted(table["functions"].items()))
    return AiterApi(release, table["version"], tuple(functions))
