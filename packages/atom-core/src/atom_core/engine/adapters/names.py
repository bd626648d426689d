"""`AdapterNames`: the adapters that requests may name. Belongs to whoever takes the requests. Torch-free."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atom_core.config.engine_args import EngineArgs
from atom_core.config.lora.limits import read_lora
from atom_core.config.lora.modules import NAME
from atom_core.config.sections import LoRAConfig
from atom_core.errors import AdapterError, InvalidRequestError
from atom_core.messages import NamedAdapter

if TYPE_CHECKING:
    from atom_models.adapters.tasks import Task
    from atom_models.checkpoint import Checkpoint


class AdapterNames:
    """Names of adapters, and the numbers under which the engine has them.

    Args:
        limits: None where none can be loaded.

    Attributes:
        tasks: the names of those that came with the model.
    """

    def __init__(self, limits: LoRAConfig | None, tasks: Sequence[str] = ()) -> None:
        self._limits = limits
        self.tasks = tuple(tasks)
        self._loaded: dict[str, NamedAdapter] = {}
        self._coming: set[str] = set()
        self._ids = itertools.count(1)

    @classmethod
    def of(cls, args: EngineArgs, checkpoint: Checkpoint) -> tuple[AdapterNames, list[NamedAdapter]]:
        """Names without any adapter, and those to load at the start, of which only the configs were looked at.

        Adapters that the checkpoint has for tasks are called as these.

        Raises:
            AdapterError: one of them cannot be served.
        """
        from atom_models.adapters.tasks import read_tasks

        tasks, modules = read_tasks(checkpoint), args.lora_modules or {}
        if twice := sorted(modules.keys() & {task.name for task in tasks}):
            raise AdapterError(f"lora_modules has {twice[0]!r}, which is a task of the model: choose another name")
        names = cls(read_lora(args, tasks), [task.name for task in tasks])
        at_start = [names._of_task(task, checkpoint) for task in tasks]
        return names, at_start + [names.prepared(name, folder) for name, folder in modules.items()]

    @property
    def loaded(self) -> Mapping[str, NamedAdapter]:
        """All adapters that requests may name."""
        return self._loaded

    def __iter__(self) -> Iterator[NamedAdapter]:
        return iter(self._loaded.values())

    def id_of(self, name: str | None) -> int:
        """The number of an adapter; 0 for no name.

        Raises:
            InvalidRequestError: with code "model_not_found", nothing is called so.
        """
        if not name:
            return 0
        if name not in self._loaded:
            known = ", ".join(self._loaded) or "none"
            raise InvalidRequestError(
                f"the adapter {name[:200]!r} is not loaded; loaded are: {known}", "model", "model_not_found"
            )
        return self._loaded[name].id

    def prepared(self, name: str, folder: str) -> NamedAdapter:
        """An adapter to load, whose config was looked at; `reserve` its place before the engine reads it.

        Raises:
            AdapterError: the name is taken or no name, there are as many as may be, or the config cannot be served.
        """
        from atom_models.adapters.adapter_config import AdapterConfig

        # Tasks have their places, whether others may come or not.
        if self._limits is None or self._limits.max_loras == len(self.tasks):
            raise AdapterError("this engine takes no adapters: start it with enable_lora or lora_modules")
        _check_name("lora_name", name)
        self._check_place(name)
        AdapterConfig.read(Path(folder), max_rank=self._limits.max_rank)
        return NamedAdapter(next(self._ids), name, folder, time.time())

    def _of_task(self, task: Task, checkpoint: Checkpoint) -> NamedAdapter:
        _check_name("a task of the model", task.name)
        own = task.name if task.folder == checkpoint.path else None
        return NamedAdapter(next(self._ids), task.name, str(task.folder), time.time(), own)

    def reserve(self, adapter: NamedAdapter) -> None:
        """Keep its name and a place while the engine reads it; then `add` or `release` it.

        Raises:
            AdapterError: another one got the name, or the last place, meanwhile.
        """
        self._check_place(adapter.name)
        self._coming.add(adapter.name)

    def release(self, adapter: NamedAdapter) -> None:
        """The engine could not take it."""
        self._coming.discard(adapter.name)

    def add(self, adapter: NamedAdapter) -> None:
        """Requests may name it from now on."""
        self._coming.discard(adapter.name)
        self._loaded[adapter.name] = adapter

    def remove(self, name: str) -> NamedAdapter:
        """No further request may name it.

        Raises:
            AdapterError: nothing is called so.
        """
        if name not in self._loaded:
            known = ", ".join(self._loaded) or "none"
            raise AdapterError(f"the adapter {name[:200]!r} is not loaded; loaded are: {known}")
        return self._loaded.pop(name)

    def _check_place(self, name: str) -> None:
        taken, most = {*self._loaded, *self._coming}, 0 if self._limits is None else self._limits.max_loras
        if name in taken:
            raise AdapterError(f"the adapter {name!r} is loaded already: unload it first")
        if len(taken) >= most:
            raise AdapterError(f"{len(taken)} adapters are loaded, as many as max_loras allows: unload one first")


def _check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise AdapterError(f"{what} is {name[:200]!r}; allowed are 1 to 128 letters, digits and _.:/@+-")
