"""Check what the wheels of a release say of themselves: `python tools/check_wheels.py FOLDER [--version 1.2.3]`."""

from __future__ import annotations

import argparse
import email.message
import email.parser
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

REQUIRED = ("Name", "Version", "Summary", "Requires-Python", "License-Expression", "Description-Content-Type")


def metadata_of(wheel: Path) -> email.message.Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode())


def problems(wheels: list[Path], version: str | None = None) -> Iterator[str]:
    """What is wrong, in words.

    Args:
        version: that of the release; None takes the first wheel's.
    """
    found = {wheel.name: metadata_of(wheel) for wheel in wheels}
    names = {about["Name"] for about in found.values()}
    for file, about in found.items():
        version = version or about["Version"]
        yield from (f"{file} has no {field}" for field in REQUIRED if not about[field])
        if not str(about.get_payload()).strip():
            yield f"{file} has no description"
        if about["Version"] != version:
            yield f"{file} is of version {about['Version']}, and the release of {version}"
        for need in about.get_all("Requires-Dist") or ():
            package = re.split(r"[^\w.-]", need, maxsplit=1)[0]
            if package.startswith("atom-") and package not in names:
                yield f"{file} needs {package}, of which there is no wheel"
            if package in names and f"=={version}" not in need:
                yield f"{file} needs {need.partition(';')[0].strip()}, which is not pinned to {version}"


def main() -> int:
    """Print what is wrong; 1 where something is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", help="of the release (default: that of the wheels)")
    args = parser.parse_args()
    wheels = sorted(args.folder.glob("*.whl"))
    found = list(problems(wheels, args.version)) if wheels else [f"there is no wheel in {args.folder}"]
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
