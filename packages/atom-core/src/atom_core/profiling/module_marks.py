"""Names what each module of a model runs, in a trace that is being recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ModuleMarks:
    """While it is there, everything that a module launches lies within a mark of the module's name.

    Without it nothing is hooked, so that marks cost nothing when nobody records.

    Args:
        modules: the modules by their names; the model itself, whose name is empty, is not marked.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._open: list[Any] = []
        self._hooks: list[Any] = []
        for name, module in modules.items():
            if name:
                self._hooks.append(module.register_forward_pre_hook(self._beginning(name)))
                self._hooks.append(module.register_forward_hook(self._end, always_call=True))

    def remove(self) -> None:
        """Leave the modules as they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _beginning(self, name: str) -> Any:
        from torch.profiler import record_function

        def begin(module: Any, inputs: Any) -> None:
            mark = record_function(name)
            mark.__enter__()
            self._open.append(mark)

        return begin

    def _end(self, module: Any, inputs: Any, output: Any) -> None:
        self._open.pop().__exit__(None, None, None)
