"""Makes Triton's interpreter run the loops of our kernels, for folders of tests that need it or a GPU."""

from __future__ import annotations

from typing import Any

import torch

from atom_kernels.settings import triton_interpret


def what_to_ignore() -> list[str]:
    """Globs of the tests that cannot run here: all of a folder without a GPU and without the interpreter."""
    if triton_interpret():
        _let_loops_run_to_loaded_numbers()
        return []
    return [] if torch.cuda.is_available() else ["test_*.py"]


def _let_loops_run_to_loaded_numbers() -> None:
    """Triton 3.6 interprets a loop's bound by `int(array of one number)`, which NumPy has refused since 2.4."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
