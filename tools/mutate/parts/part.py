"""`Part`: files of the product that mistakes are put into, the tests that hold them, and what is harmless there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.mutate.mutation import ROOT, Mutation, Operator, mutations_of, one_line

PACKAGES = ROOT / "packages"
# (file, or file: function or class, what was edited, into what) -> why nobody could see it. "*" is any text; what is
# outside of functions and classes is in "(module)".
Harmless = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True)
class Part:
    """Attributes:
    name: as ``--part`` takes it.
    files: patterns below `packages` -> the test files, below `packages` too, that hold what the pattern finds.
        A file belongs to the first pattern that it fits.
    operators: the kinds of mistakes.
    harmless: mistakes that are not tried, each with its reason.
    left_out: names of files without code of this part.
    """

    name: str
    files: Mapping[str, Sequence[str]]
    operators: Sequence[Operator]
    harmless: Harmless
    left_out: Sequence[str] = ("__init__.py",)

    @cached_property
    def tests_of_file(self) -> dict[Path, list[Path]]:
        """Each source file and its test files, the last of which has the defaults of its package, where it has any."""
        found: dict[Path, list[Path]] = {}
        for pattern, tests in self.files.items():
            for path in sorted(PACKAGES.glob(pattern)):
                if path.name not in self.left_out:
                    found.setdefault(path, [*(PACKAGES / test for test in tests), *_table_of_defaults(path)])
        return found

    @cached_property
    def mutations(self) -> list[Mutation]:
        """All mistakes, harmless ones too, in the order of files and lines."""
        return [edit for path in sorted(self.tests_of_file) for edit in mutations_of(path, self.operators)]

    def reason_of(self, mutation: Mutation) -> str | None:
        """Why a mistake is harmless, None if it is not."""
        for (place, before, after), reason in self.harmless.items():
            file, _, scope = place.partition(": ")
            if (
                ("/" + mutation.file).endswith("/" + file)
                and scope in ("", mutation.scope or "(module)")
                and one_line(before) in ("*", one_line(mutation.before))
                and one_line(after) in ("*", one_line(mutation.after))
            ):
                return reason
        return None


def _table_of_defaults(path: Path) -> list[Path]:
    package = path.relative_to(PACKAGES).parts[0]
    return list(PACKAGES.glob(f"{package}/tests/test_defaults_of_*.py"))
