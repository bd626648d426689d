"""`Warmup`: does in slices, before requests need it, what their steps would compile, capture or load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from atom_core.worker.cache.device_memory import give_memory_back
from atom_core.worker.model.compilation import CompilationWatch
from atom_core.worker.warmup.steps_of_nobody import StepsOfNobody
from atom_core.worker.warmup.variants import Variant
from atom_kernels.triton.compile_ahead import compile_ahead

logger = logging.getLogger(__name__)


class Warmup:
    """What is left to do before no step waits for a compiler.

    Before there are requests, the kernels of all variants are compiled first, side by side and without a launch. Not
    later: graphs would be replayed then over a batch that nobody built, and write where requests read. Then graphs are
    captured, without which steps are slow, and then each variant is run once: its first launch would compile, or load
    onto the device, what it needs.

    Args:
        variants: the steps that service can meet; none where nothing is compiled or captured for them.
        steps: runs them.
        capture_next: captures a graph; False where none is left.
        watch: is told that what is compiled now keeps no request waiting.
        compiles_ahead: kernels can be compiled without launching them.
        at_once: there are no requests before all is done.

    Attributes:
        variants: the variants that service can meet.
        is_running: a slice is being done.
    """

    def __init__(
        self,
        variants: Iterable[Variant],
        steps: StepsOfNobody,
        capture_next: Callable[[], bool],
        watch: CompilationWatch,
        *,
        compiles_ahead: bool,
        at_once: bool,
    ) -> None:
        self.variants = tuple(variants)
        self.is_running = False
        self._steps, self._capture_next, self._watch = steps, capture_next, watch
        self._to_compile = self.variants if compiles_ahead and at_once else ()
        self._captures = True
        self._to_run = list(self.variants)

    def do_next(self) -> bool:
        """Do a slice; False where nothing is left."""
        self.is_running = True
        try:
            with self._watch.early():
                return self._do_next()
        finally:
            self.is_running = False

    def _do_next(self) -> bool:
        if self._to_compile:
            compile_ahead(lambda: [self._try(variant) for variant in self._to_compile])
            self._to_compile = ()
            give_memory_back()  # a capture can take none of what only waits to be used again
        elif self._captures:
            self._captures = self._capture_next()
        elif (variant := self._take()) is not None:
            self._try(variant, waits=True)
        return self._captures or bool(self._to_run)

    def _take(self) -> Variant | None:
        """The next that has room beside the open requests. The others are given up where none has."""
        found = next((variant for variant in self._to_run if self._steps.has_room(variant)), None)
        if found is None:
            self._to_run.clear()
        else:
            self._to_run.remove(found)
        return found

    def _try(self, variant: Variant, *, waits: bool = False) -> None:
        try:
            pending = self._steps.run(variant)
            if waits:
                pending()
        except Exception as error:  # a request that meets it reports it
            logger.debug("not warmed up: %s: %s: %s", variant.name, type(error).__name__, error)
