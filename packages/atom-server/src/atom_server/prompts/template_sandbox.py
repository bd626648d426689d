"""`TemplateSandbox`: Jinja for templates of strangers. Jinja limits what they touch, and this what they use up.

A template can go on without end only by loops and by calls of its macros, and can make long texts only by joining and
multiplying. Each of these asks a `RenderBudget`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Rendering a conversation of a million characters takes some hundredths of a second.
CPU_SECONDS = 2.0
MAX_CHARACTERS = 2**26
# The clock is looked at once in so many turns of loops.
_TURNS = 64

# No template can name a variable so.
BUDGET = "render budget"
_ENLARGING = ("center", "format", "indent", "join", "replace")
_TIMED, _BOUNDED = "loop within the budget", "text within the budget"


class BudgetError(Exception):
    """A template used up its budget; the message says of what."""


class UnwantedError(Exception):
    """Nobody waits for the text any more."""


class RenderBudget:
    """What one rendering may use: processor time of its thread, and characters of each text that it makes.

    Args:
        is_wanted: asked now and then; rendering ends once it returns False.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        cpu_seconds: float = CPU_SECONDS,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._is_wanted = is_wanted
        self._cpu_seconds = cpu_seconds
        self._max_characters = max_characters
        self._start = time.thread_time()
        self._num_turns = 0

    def turn(self) -> None:
        """One more turn of a loop, or a call.

        Raises:
            BudgetError, UnwantedError: the rendering has to end.
        """
        self._num_turns += 1
        if self._num_turns % _TURNS:
            return
        if time.thread_time() - self._start > self._cpu_seconds:
            raise BudgetError(f"it takes more than {self._cpu_seconds:g} s of processor time")
        if not self._is_wanted():
            raise UnwantedError

    def check_size(self, size: float) -> None:
        """Raise BudgetError for a text or a list that is longer than it may be."""
        if size > self._max_characters:
            raise BudgetError(f"it makes a text or list of more than {self._max_characters} characters or items")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Templates that count what they use; the context of each rendering has its `RenderBudget` under `BUDGET`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters |= {_TIMED: _timed, _BOUNDED: _bounded}
        for name in _ENLARGING:
            self.filters[name] = _checked(name, self.filters[name])

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Every call of a template comes here: of its macros, too."""
        budget: RenderBudget = context.parent[BUDGET]
        budget.turn()
        # Jinja wraps str.format.
        text = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(text, str):
            budget.check_size(_size_of_call(getattr(obj, "__name__", ""), text, (*args, *kwargs.values())))
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str | list):
            budget.check_size(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Operators whose results may be far longer than what they take."""
        budget: RenderBudget = context.parent[BUDGET]
        budget.check_size(_size_of_result(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = _through(_TIMED, loop.iter)
        for block in source.find_all(nodes.AssignBlock):
            block.filter = _through(_BOUNDED, block.filter)
        for block in source.find_all(nodes.FilterBlock):
            block.filter = _through(_BOUNDED, block.filter)
        _bound_joins(source)
        return super()._generate(source, name, filename, defer_init)


def _through(name: str, node: Any) -> Any:
    """`node` piped through a filter."""
    lineno = 1 if node is None else node.lineno
    return nodes.Filter(node, name, [], [], None, None, lineno=lineno)


def _bound_joins(node: nodes.Node) -> None:
    """Put a check behind each ``~`` under `node`."""
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            _bound_joins(value)
            if isinstance(value, nodes.Concat):
                setattr(node, field, _through(_BOUNDED, value))
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, nodes.Node):
                    _bound_joins(item)
            value[:] = [_through(_BOUNDED, item) if isinstance(item, nodes.Concat) else item for item in value]


@jinja2.pass_context
def _timed(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    """The items of a loop. Each one is counted."""
    budget: RenderBudget = context.parent[BUDGET]
    # A loop over what is no list finds that out itself, with an error of its own.
    return _Counted(items, budget) if hasattr(items, "__len__") else _counted(items, budget)


def _counted(items: Iterable[Any], budget: RenderBudget) -> Iterator[Any]:
    for item in items:
        budget.turn()
        yield item


class _Counted:
    """A list whose items are counted as a loop takes them; its length is known as before."""

    def __init__(self, items: Any, budget: RenderBudget) -> None:
        self._items = items
        self._budget = budget

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _counted(self._items, self._budget)


@jinja2.pass_context
def _bounded(context: Context, text: Any) -> Any:
    """`text`, unless it is too long."""
    budget: RenderBudget = context.parent[BUDGET]
    budget.turn()
    budget.check_size(len(text) if isinstance(text, str) else 0)
    return text


def _checked(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's with a check before it of how long its result may be."""

    @jinja2.pass_context
    def checked(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if name == "format":
            size = _size_of_result("%", str(value), given)
        elif name == "join":
            size = len(str(given[0] if given else "")) * (len(value) if hasattr(value, "__len__") else 1)
        else:
            size = _size_of_call(name, str(value), given)
        context.parent[BUDGET].check_size(size)
        wants = getattr(work, "jinja_pass_arg", None)
        if wants is None:
            return work(value, *args, **kwargs)
        return work(context.eval_ctx if "eval" in wants.name else context.environment, value, *args, **kwargs)

    return checked


def _size_of_call(name: str, text: str, args: tuple[Any, ...]) -> float:
    """The greatest length of what a method or a filter makes of a text."""
    lengths = [len(value) for value in args if isinstance(value, str | list | tuple)]
    numbers = [value for value in args if isinstance(value, int) and not isinstance(value, bool)]
    match name:
        case "center" | "ljust" | "rjust" | "zfill":
            return max(numbers, default=0)
        case "expandtabs":
            return text.count("\t") * max(numbers, default=8)
        case "indent":
            return (text.count("\n") + 1) * max([*numbers, *lengths], default=0)
        case "replace" if len(args) > 1:
            return len(text) + text.count(str(args[0])) * len(str(args[1]))
        case "join":
            return len(text) * max(lengths, default=1)
        case "format" | "format_map":
            is_given = any(":" in part.split("}")[0] and "}" not in part for part in text.split("{")[1:])
            widths = "".join(c if c.isdigit() else " " for c in text).split()
            return MAX_CHARACTERS + 1 if is_given else sum(int(width[:12]) for width in widths)
    return 0


def _size_of_result(operator: str, left: Any, right: Any) -> float:
    """The greatest length of an operator's result: in characters, items or digits."""
    sizes = [len(value) if isinstance(value, str | list | tuple) else None for value in (left, right)]
    match operator, left, right:
        case "+", _, _:
            return sum(size or 0 for size in sizes)
        case "*", _, int() if sizes[0] is not None:
            return sizes[0] * right
        case "*", int(), _ if sizes[1] is not None:
            return sizes[1] * left
        case "*", int(), int():
            return left.bit_length() + right.bit_length()
        case "**", int(), int():
            return left.bit_length() * right * 64  # slower than its length tells
        case "%", str(), _:
            return len(left) + sum(_width(word) for word in left.split("%")[1:])
    return 0


def _width(word: str) -> int:
    """The width and precision that a conversion of ``%`` asks for; the greatest possible where a value gives them."""
    digits = word.lstrip("#0- +")
    if digits.startswith("*") or ".*" in digits[:16]:
        return MAX_CHARACTERS
    numbers = "".join(c if c.isdigit() else " " for c in digits[:64].split("(")[-1]).split()
    return sum(int(number) for number in numbers[:2])
