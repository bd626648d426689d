"""`Suite`: a file of tests that use one outside client, and what its head says about the client and its environment."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "suites"

# The block in a script's head that Python's packaging standard calls "inline script metadata", in either comment style.
_BLOCK = re.compile(r"^(?:#|//) /// script$\n(?P<content>(?:^(?:#|//)(?:| .*)$\n)+?)^(?:#|//) ///$", re.MULTILINE)
_PROVES = re.compile(r'^(?:"""|// )(?P<line>.*?)(?:""")?$', re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    """Tests of our server through one client.

    Attributes:
        path: the file; its name without ending is the suite's name.
        requirements: what its environment holds, the client first, as pip or npm takes them; all of them pinned.
        without_dependencies: packages of which nothing but themselves is installed.
        proves: one line: the client, and what the tests show with it.
    """

    path: Path
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...]
    proves: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def uses_node(self) -> bool:
        return self.path.suffix == ".mjs"

    @property
    def client(self) -> tuple[str, str]:
        """Name and version of the client."""
        pinned = (*self.without_dependencies, *self.requirements)[0]
        name, _, version = pinned.rpartition("@" if self.uses_node else "==")
        return name.partition("[")[0], version

    @classmethod
    def read(cls, path: Path) -> Suite:
        """The suite in a file.

        Raises:
            ValueError: its head lacks the block of metadata or the line that says what it proves.
        """
        text = path.read_text(encoding="utf-8")
        block = _BLOCK.search(text)
        proves = _PROVES.search(text, block.end() + 1) if block else None
        if block is None or proves is None:
            raise ValueError(f"{path}: no '/// script' block with a line after it that says what the suite proves")
        metadata = tomllib.loads(re.sub(r"^(?:#|//) ?", "", block["content"], flags=re.MULTILINE))
        own = metadata.get("tool", {}).get("conformance", {})
        return cls(
            path, tuple(metadata["dependencies"]), tuple(own.get("without-dependencies", ())), proves["line"].strip()
        )


def all_suites() -> list[Suite]:
    """Every suite, by name."""
    paths = (*FOLDER.glob("*.py"), *FOLDER.glob("*.mjs"))
    return [Suite.read(path) for path in sorted(paths) if path.name != "conftest.py"]


def chosen_suites(names: list[str]) -> list[Suite]:
    """The named suites in the order given, or all of them.

    Raises:
        ValueError: a name is of no suite.
    """
    known = {suite.name: suite for suite in all_suites()}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no suite {name!r}; the suites are {', '.join(known)}")
    return [known[name] for name in names] or list(known.values())
