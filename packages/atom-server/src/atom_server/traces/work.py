"""Which module and step each piece of work of a trace belongs to: kernels on a GPU, operators on a CPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from atom_server.traces.marks import is_module, marks_graphs, step_mark
from atom_server.traces.trace_file import Event

MARK, OPERATOR = "user_annotation", "cpu_op"
# CUDA and ROCm share the names of categories: HIP's calls are recorded as those of a runtime too.
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"})
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
NO_OPERATOR = "(no operator)"
# Calls that put work on the GPU, by parts of their names, of CUDA's runtime and driver, and of HIP.
_PUTS_WORK = ("Launch", "Memcpy", "Memset")


@dataclass(frozen=True)
class Work:
    """A kernel, or an operator of a CPU; `module` is empty where no module launched it."""

    module: str
    kernel: str
    start: float
    microseconds: float


@dataclass
class Step:
    """A step of the engine, and its work in order."""

    kind: str
    start: float
    num_requests: int
    num_tokens: int
    work: list[Work] = field(default_factory=list)

    @property
    def microseconds(self) -> float:
        """The time of all its work."""
        return sum(work.microseconds for work in self.work)


@dataclass
class _Open:
    """An event that others lie within."""

    event: Event
    end: float


@dataclass(frozen=True)
class CapturedGraph:
    """What a capture says of a graph.

    Attributes:
        modules: what launched its kernels, in order.
        then: the module within which the capture ended: it runs behind each replay, up to the next graph.
    """

    modules: Sequence[str]
    then: str


Graphs = Mapping[str, Sequence[CapturedGraph]]
"""The graphs of each capture in order, by its mark."""


def steps_of(events: Sequence[Event], graphs: Graphs | None = None) -> list[Step]:
    """The steps of a trace, in order; `graphs` are those of `captured_graphs`."""
    kernels: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") in ON_GPU:
            kernels[event["args"]["correlation"]].append(event)
    steps: dict[int, Step] = {}
    replayed: Counter[int] = Counter()
    for event, stack in _nested(events):
        step = _step_around(stack, steps)
        if step is None:
            continue
        module = _innermost_module(stack)
        if kernels:
            if event.get("cat") in LAUNCHES:
                launched = kernels.get(event["args"].get("correlation"), [])
                modules = _modules_of(event, stack, graphs or {}, replayed)
                step.work += _works(launched, modules if len(modules) == len(launched) else [module] * len(launched))
        elif event.get("cat") == OPERATOR and stack[-1].event.get("cat") == MARK:
            step.work.append(Work(module, event["name"], event["ts"], event["dur"]))
    if not kernels:
        _add_rests(events, steps)
    found = sorted(steps.values(), key=lambda step: step.start)
    for step in found:
        step.work.sort(key=lambda work: work.start)
    return found


def captured_graphs(events: Sequence[Event]) -> dict[str, list[CapturedGraph]]:
    """See `Graphs`."""
    graphs: dict[str, list[CapturedGraph]] = {}
    current: list[str] | None = None
    for event, stack in _nested(events):
        if event.get("cat") not in LAUNCHES:
            continue
        if "StreamBeginCapture" in event["name"]:
            current = []
        elif "StreamEndCapture" in event["name"]:
            if current is not None and (mark := _mark_of_graphs(stack)):
                graph = CapturedGraph(current, _innermost_module(stack))
                graphs.setdefault(mark.event["name"], []).append(graph)
            current = None
        elif current is not None and any(part in event["name"] for part in _PUTS_WORK):
            current.append(_innermost_module(stack))
    return graphs


def _modules_of(event: Event, stack: Sequence[_Open], graphs: Graphs, replayed: Counter[int]) -> Sequence[str]:
    """The modules of what `event` launches while graphs are replayed; none where they are not, or are not known.

    Args:
        replayed: graphs that each replay has launched so far.
    """
    if (mark := _mark_of_graphs(stack)) is None:
        return ()
    captured, key = graphs.get(mark.event["name"], ()), id(mark.event)
    if "GraphLaunch" not in event["name"]:
        return [captured[replayed[key] - 1].then] if 0 < replayed[key] <= len(captured) else ()
    replayed[key] += 1
    return captured[replayed[key] - 1].modules if replayed[key] <= len(captured) else ()


def _works(kernels: Sequence[Event], modules: Sequence[str]) -> Iterator[Work]:
    """What one call put on the GPU, by the modules. A graph's kernels come in the order in which they were captured."""
    for module, kernel in zip(modules, sorted(kernels, key=lambda kernel: kernel["ts"]), strict=True):
        yield Work(module, kernel["name"], kernel["ts"], kernel["dur"])


def _nested(events: Sequence[Event]) -> Iterator[tuple[Event, list[_Open]]]:
    """Every event of the host with those that it lies within, the outermost first, thread by thread."""
    threads: defaultdict[tuple[object, object], list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") in (MARK, OPERATOR) or event.get("cat") in LAUNCHES:
            threads[event.get("pid"), event.get("tid")].append(event)
    for thread in threads.values():
        stack: list[_Open] = []
        for event in sorted(thread, key=lambda event: (event["ts"], -event["dur"])):
            while stack and stack[-1].end <= event["ts"]:
                stack.pop()
            yield event, stack
            stack.append(_Open(event, event["ts"] + event["dur"]))


def _add_rests(events: Sequence[Event], steps: dict[int, Step]) -> None:
    """On a CPU, add the time of each mark that no operator and no mark within it covers, as kernels in C are."""
    rests: dict[int, tuple[Step, str, Event, float]] = {}
    for event, stack in _nested(events):
        if event.get("cat") == MARK:
            step = steps.get(id(event)) or _step_around(stack, steps)
            if step is not None:
                module = event["name"] if is_module(event["name"]) else ""
                rests[id(event)] = (step, module, event, event["dur"])
        if stack and event.get("cat") in (MARK, OPERATOR) and (parent := rests.get(id(stack[-1].event))):
            rests[id(stack[-1].event)] = (*parent[:3], parent[3] - event["dur"])
    for step, module, event, rest in rests.values():
        step.work.append(Work(module, NO_OPERATOR, event["ts"], max(0.0, rest)))


def _step_around(stack: Sequence[_Open], steps: dict[int, Step]) -> Step | None:
    """The step that a stack of events lies in; it is added to `steps` where it is new."""
    for opened in stack:
        mark = step_mark(opened.event["name"]) if opened.event.get("cat") == MARK else None
        if mark is not None:
            step = Step(mark.kind, opened.event["ts"], mark.num_requests, mark.num_tokens)
            return steps.setdefault(id(opened.event), step)
    return None


def _mark_of_graphs(stack: Sequence[_Open]) -> _Open | None:
    marks = (each for each in stack if each.event.get("cat") == MARK and marks_graphs(each.event["name"]))
    return next(marks, None)


def _innermost_module(stack: Sequence[_Open]) -> str:
    for opened in reversed(stack):
        if opened.event.get("cat") == MARK and is_module(opened.event["name"]):
            return opened.event["name"]
    return ""
