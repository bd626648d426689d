"""`CompiledWhereWritten`: a compiled model that goes on uncompiled when its compiler's files find no room."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

# The compiler wraps what the disk said, or has it from another program: the words are all that stays.
_NO_ROOM = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS))


class CompiledWhereWritten:
    """Calls `compiled`, which compiles for the inputs of its first calls, and `model` once that finds no room.

    A model is compiled before any of it runs, so the call that failed is made anew.

    Args:
        compiled: what `torch.compile` made of `model`.
        model: the model that is compiled, as it was.
        folder: where the compiler keeps its files.
    """

    def __init__(self, compiled: Callable[..., Any], model: Callable[..., Any], folder: Path) -> None:
        self._run, self._model, self._folder = compiled, model, folder

    def __call__(self, *inputs: Any) -> Any:
        """Run the model on `inputs`."""
        try:
            return self._run(*inputs)
        except Exception as error:
            reason = next((words for words in _NO_ROOM if words in str(error)), None)
            if reason is None or self._run is self._model:
                raise
        warn_uncompiled(self._folder, reason)
        self._run = self._model
        return self._model(*inputs)


def warn_uncompiled(folder: Path | str, reason: str | None) -> None:
    """Say that a model runs uncompiled, and what to do."""
    logger.warning(
        "compiled code cannot be written to %s: %s. The model runs uncompiled from now on, as at level 0; free some "
        "space, or set ATOM_CACHE_DIR to a folder that can be written and has some, and start anew",
        folder,
        reason,
    )
