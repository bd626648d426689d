"""The build backend of the repository's root, which is no package: it says so in a sentence, and what to install."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

SENTENCE = (
    "The root of this repository is a workspace, not a package: run `make serve` to try ATOM, or install its packages "
    "by path, `pip install ./packages/atom-kernels ./packages/atom-models ./packages/atom-core ./packages/atom-server`."
)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    sys.exit(SENTENCE)


get_requires_for_build_wheel = get_requires_for_build_editable = get_requires_for_build_sdist = _refuse
build_wheel = build_editable = build_sdist = _refuse
