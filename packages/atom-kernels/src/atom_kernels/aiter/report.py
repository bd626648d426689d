"""What `explain`, and `atom doctor` by it, say of an AITER: which one, where, and what it lacks. It is not imported."""

from __future__ import annotations

from atom_kernels.aiter.api import AiterApi
from atom_kernels.aiter.functions import FUNCTIONS
from atom_kernels.aiter.sources import AiterUnusableError, installed_version, package_folder, read_api

_RELEASES = {"git": "sources from git", "pypi": "the release on PyPI"}


def describe_api(api: AiterApi, place: str = "") -> list[str]:
    """Its version, and which of the functions that adapters call it does not have."""
    lacking = [name for name in FUNCTIONS if api.why_not(name) is not None]
    lines = [f"aiter      {api.version}, {_RELEASES[api.release]}{place}"]
    return [*lines, f"           lacks {', '.join(lacking)}"] if lacking else lines


def describe_installation() -> list[str]:
    """Of the one that is installed, whether this machine can run it or not; nothing where there is none."""
    version = installed_version()
    if version is None:
        return []
    try:
        folder = package_folder()
        return describe_api(read_api(folder, version), f", in {folder}")
    except AiterUnusableError as error:
        return [f"aiter      {version} cannot be used: {error}"]
