"""Lines of `explain` and `atom doctor` about AITER: release, place, and what it lacks. It is not imported."""

from __future__ import annotations

from atom_kernels.aiter.api import AiterApi
from atom_kernels.aiter.functions import FUNCTIONS
from atom_kernels.aiter.sources import AiterUnusableError, installed_version, package_folder, read_api

_RELEASES = {"git": "sources from git", "pypi": "the release on PyPI"}


def describe_api(api: AiterApi, place: str = "") -> list[str]:
    """Lines with its version, and with the functions that adapters call and it does not have."""
    # What sources from git have under another name is nothing that they lack.
    called = [name for name, function in FUNCTIONS.items() if api.release != "git" or function.git is not None]
    lacking = [name for name in called if api.why_not(name) is not None]
    lines = [f"aiter      {api.version}, {_RELEASES[api.release]}{place}"]
    return [*lines, f"           lacks {', '.join(lacking)}"] if lacking else lines


def describe_installation() -> list[str]:
    """Lines about the installed AITER, whether or not this machine can run it; none where none is installed."""
    version = installed_version()
    if version is None:
        return []
    try:
        folder = package_folder()
        return describe_api(read_api(folder, version), f", in {folder}")
    except AiterUnusableError as error:
        return [f"aiter      {version} cannot be used: {error}"]
