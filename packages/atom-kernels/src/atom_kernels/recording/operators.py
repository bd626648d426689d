"""What a recording must know of torch's operators: which cannot be done again, and how others write into old memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_CPU = torch._C.DispatchKey.CPU
_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
# No operator is asked for what these read.
_READERS = frozenset(getattr(torch.Tensor, name) for name in ("tolist", "numpy", "__array__", "__dlpack__"))
# Nor for what these read of tensors that they are given, from this argument on.
_READ_FROM = {
    **dict.fromkeys((torch.tensor, torch.as_tensor, torch.asarray), 0),
    **dict.fromkeys((torch.Tensor.new_tensor, torch.Tensor.tensor_split, torch.tensor_split), 1),
}


class ReadsOfHost(TorchFunctionMode):
    """Tells `refuse` of functions that bring values to Python and ask no operator for them."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _READERS or _reads_arguments(function, args, kwargs):
            self._refuse(f"{function.__name__} brings values of a tensor to Python")
        return function(*args, **kwargs)


def _reads_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    first = _READ_FROM.get(function)
    return first is not None and next(tensors_in((*args[first:], *kwargs.values())), None) is not None


def is_composed(operator: Any) -> bool:
    """Whether it asks other operators for all that it does: those are what counts."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(operator.name(), COMPOSED) and not has_kernel(operator.name(), _CPU)


def why_not_again(operator: Any, args: tuple[Any, ...]) -> str | None:
    """Why work that calls `operator` cannot be done again without Python; None where it can."""
    if not _gives_tensors(operator):
        return f"{operator} brings values of a tensor to Python"
    if operator is _aten.index.Tensor:
        return f"{operator} chooses by a mask" if any(one.dtype in _MASKS for one in tensors_in(args[1])) else None
    if torch.Tag.dynamic_output_shape in operator.tags:
        return f"{operator} gives as many elements as values say"
    if torch.Tag.inplace_view in operator.tags and operator is not _aten.detach_.default:
        return f"{operator} changes what a tensor looks at"
    return None


def _gives_tensors(operator: Any) -> bool:
    return all("Tensor" in str(one.type) for one in operator._schema.returns)


@functools.cache
def out_variant(operator: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The same that writes into tensors, and what it calls these; None where there is none.

    One that torch generated works the result out elsewhere and copies it, as we can ourselves.
    """
    wanted = [_described(one) for one in operator._schema.arguments]
    for name in operator.overloadpacket.overloads():
        other = getattr(operator.overloadpacket, name)
        arguments = other._schema.arguments
        outs = tuple(one.name for one in arguments if one.is_out)
        given = [_described(one) for one in arguments if not one.is_out]
        if torch.Tag.generated in other.tags:
            continue
        if outs and len(outs) == len(operator._schema.returns) and given == wanted:
            return other, outs
    return None


def quickest(operator: Any, args: Sequence[Any], given: dict[str, Any]) -> Callable[..., Any]:
    """What calls `operator` soonest: torch's own binding, where it takes these, or the operator itself.

    The binding reads its arguments in some 5 us less, which is as long as a small kernel runs.
    """
    bindings = torch._C._VariableFunctions  # pyright: ignore[reportAttributeAccessIssue]
    binding = getattr(bindings, operator._schema.name.removeprefix("aten::"), None)
    if binding is None:
        return operator
    try:
        binding(*args, **given)
    except (TypeError, RuntimeError):  # it has other arguments
        return operator
    return binding


def _described(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument or a result, which may be a sequence of them."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from tensors_in(one)
