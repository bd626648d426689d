"""One layer of one step: its kernels by module, beside the mean over all layers of the step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atom_server.traces.marks import layer_part
from atom_server.traces.roofline import Roofline
from atom_server.traces.trace_file import TraceError
from atom_server.traces.work import Step, Work

LAYER_ITSELF = "(layer)"


@dataclass(frozen=True)
class Row:
    """A kernel of the layer. Times are in microseconds; means are over the layers that have the same kernel there.

    Attributes:
        share: its part of the layer's time.
        roofline: the least time of its module, over what all kernels of that module took; None where it is not known.
    """

    module: str
    kernel: str
    microseconds: float
    share: float
    mean_microseconds: float
    num_layers: int
    roofline: float | None = None


@dataclass(frozen=True)
class Breakdown:
    """What a phase's step of middle length spent in one layer, and where the rest of it went.

    Attributes:
        phase: "prefill" or "decode".
        num_steps: steps of this phase in the trace.
        step_microseconds: time of all work of the step.
        attributed: the share of it that a module launched.
        modules: time of each module in the whole step, by name; parts of layers are summed over all layers.
    """

    phase: str
    layer: int
    num_steps: int
    step_microseconds: float
    attributed: float
    rows: Sequence[Row]
    modules: dict[str, float]

    @property
    def layer_microseconds(self) -> float:
        """The time of the layer."""
        return sum(row.microseconds for row in self.rows)

    def of_modules(self) -> dict[str, list[Row]]:
        """The rows of each module, in the order in which they ran."""
        found: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            found[row.module].append(row)
        return dict(found)


def break_down(steps: Sequence[Step], phase: str, layer: int, roofline: Roofline | None = None) -> Breakdown:
    """The breakdown of `phase`; a trace whose prompts all ran beside decodes gives mixed steps for "prefill".

    Raises:
        TraceError: the trace has no such step, no marks of modules, or no such layer.
    """
    kinds = {"prefill": ("prefill", "mixed"), "decode": ("decode",)}[phase]
    of_phase = next((found for kind in kinds if (found := [step for step in steps if step.kind == kind])), [])
    if not of_phase:
        raise TraceError(f"the trace has no {phase} step; record one with --mark-trace, over whole requests")
    step = sorted(of_phase, key=lambda step: step.microseconds)[len(of_phase) // 2]
    layers = _layers(step)
    if not layers:
        raise TraceError(
            "no kernel of the trace lies in a layer: record it with --mark-trace, and where graphs were replayed, name "
            "the trace of their captures by --capture-trace"
        )
    if layer not in layers:
        raise TraceError(f"--layer {layer}: the {phase} step has the layers {min(layers)} to {max(layers)}")
    total = step.microseconds
    attributed = sum(work.microseconds for work in step.work if work.module)
    return Breakdown(
        phase,
        layer,
        len(of_phase),
        total,
        attributed / total if total else 0.0,
        _rows(layers, layer, _shares_of_roofline(step, layers[layer], roofline)),
        _by_module(step),
    )


def _layers(step: Step) -> dict[int, list[tuple[str, Work]]]:
    layers: defaultdict[int, list[tuple[str, Work]]] = defaultdict(list)
    for work in step.work:
        if found := layer_part(work.module):
            layers[found.number].append((found.part or LAYER_ITSELF, work))
    return dict(layers)


def _shares_of_roofline(step: Step, works: Sequence[tuple[str, Work]], roofline: Roofline | None) -> dict[str, float]:
    """By the part of the layer, for those whose least time is known."""
    if roofline is None:
        return {}
    taken: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part, work in works:
        taken[part, work.module] += work.microseconds
    least = {key: roofline.least_microseconds(step, key[1]) for key in taken}
    return {key[0]: time / taken[key] for key, time in least.items() if time is not None and taken[key]}


def _rows(layers: dict[int, list[tuple[str, Work]]], layer: int, shares: Mapping[str, float]) -> list[Row]:
    """Kernels are the same in two layers where module, name and how often it came before are."""
    times: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    keys: dict[int, list[tuple[str, str, int]]] = {}
    for number, works in layers.items():
        seen: defaultdict[tuple[str, str], int] = defaultdict(int)
        keys[number] = []
        for module, work in works:
            key = (module, work.kernel, seen[module, work.kernel])
            seen[module, work.kernel] += 1
            keys[number].append(key)
            times[key].append(work.microseconds)
    works = layers[layer]
    total = sum(work.microseconds for _, work in works) or 1.0
    rows = [
        Row(
            module,
            work.kernel,
            work.microseconds,
            work.microseconds / total,
            statistics.fmean(times[key]),
            len(times[key]),
            shares.get(module),
        )
        for (module, work), key in zip(works, keys[layer], strict=True)
    ]
    order = list(dict.fromkeys(row.module for row in rows))
    return sorted(rows, key=lambda row: order.index(row.module))


def _by_module(step: Step) -> dict[str, float]:
    modules: defaultdict[str, float] = defaultdict(float)
    for work in step.work:
        found = layer_part(work.module)
        name = f"layers.{found.part or LAYER_ITSELF}" if found else work.module or "(no module)"
        modules[name] += work.microseconds
    return dict(sorted(modules.items(), key=lambda entry: -entry[1]))
