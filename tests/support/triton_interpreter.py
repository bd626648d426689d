"""Makes Triton's interpreter run the loops of our kernels, and quickly, for folders of tests that need it or a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from types import NoneType, SimpleNamespace
from typing import Any

import torch

from atom_kernels.settings import triton_interpret


def what_to_ignore() -> list[str]:
    """Globs of the tests that cannot run here: all of a folder without a GPU and without the interpreter."""
    if triton_interpret():
        _let_loops_run_to_loaded_numbers()
        _look_up_types_once()
        _describe_shapes_when_asked()
        _make_each_shape_once()
        _compare_a_type_with_itself_at_once()
        _check_no_overflow_that_nobody_asks_for()
        _unwrap_constants_alone()
        _call_functions_of_the_language_directly()
        _patch_the_language_once()
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


def _patch_the_language_once() -> None:
    """The interpreter patches all of Triton's language at each call of a function, which takes longer than most calls.

    Our processes interpret all that they run, so the language stays patched.
    """
    from triton import language
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    patched = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda function: patched


def _check_no_overflow_that_nobody_asks_for() -> None:
    """The interpreter computes sums and products of integers once more in 64 bits, and asserts nothing of them."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


def _look_up_types_once() -> None:
    """The interpreter makes a table of all types at each look at one."""
    from triton.runtime import interpreter

    look_up, known = interpreter._get_np_dtype, {}

    def looked_up(type_of_triton: Any) -> Any:
        name = type_of_triton.scalar.name
        if name not in known:
            known[name] = look_up(type_of_triton)
        return known[name]

    interpreter._get_np_dtype = looked_up


def _describe_shapes_when_asked() -> None:
    """Each tensor's shape is a tuple whose type has a name, as its own type has: they are much of a run, and unread."""
    from triton.language import core

    make_tuple = core.tuple.__init__

    def made_tuple(self: Any, args: Any, type: Any = None) -> None:
        if type is None:
            self.values = list(args)
        else:
            make_tuple(self, args, type)

    def made_constant(self: Any, value: Any) -> None:
        self.value = value.value if isinstance(value, core.constexpr) else value

    core.tuple.__init__, core.constexpr.__init__ = made_tuple, made_constant
    _ask_for(core.tuple, "type", lambda self: core._type_for_tuple_values(self.values))
    _ask_for(core.constexpr, "type", lambda self: core.constexpr_type(self.value))
    _ask_for(core.block_type, "name", lambda self: f"<{self.shape}, {self.element_ty}>")


def _make_each_shape_once() -> None:
    """Types and tensors share what tells of a shape, which nothing changes: equal ones are the same one then."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    make_type, broadcast = core.block_type.__init__, TritonSemantic.broadcast_impl_value
    shapes: dict[tuple[int, ...], tuple[Any, int]] = {}
    known: dict[int, tuple[Any, int]] = {}  # by the identity of a shape that is kept
    of_tensors: dict[int, tuple[Any, Any]] = {}
    scalar = core.tuple([]), core.constexpr(1)

    def shape_of(made: Any, element_ty: Any, shape: Any) -> tuple[Any, int]:
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        if sizes not in shapes:
            make_type(made, element_ty, shape)  # which checks it
            kept = shapes[sizes] = core.tuple(sizes), made.numel
            known[id(kept[0])] = kept
            of_tensors[id(kept[0])] = core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(made.numel)
        return shapes[sizes]

    def made_type(self: Any, element_ty: Any, shape: Any) -> None:
        self.shape, self.numel = known.get(id(shape)) or shape_of(self, element_ty, shape)
        self.element_ty = element_ty
        self.__dict__.pop("name", None)

    def made_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = of_tensors[id(type.shape)] if type.is_block() else scalar

    def broadcasted(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = made_type, made_tensor
    TritonSemantic.broadcast_impl_value = broadcasted


def _compare_a_type_with_itself_at_once() -> None:
    """Types are compared by name, and operands of one type are converted to it, however often it is the same one."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    equal, check = core.dtype.__eq__, TritonSemantic.binary_op_type_checking_impl
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)

    def checked(self: Any, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        same = type(lhs) is core.tensor and type(rhs) is core.tensor and lhs.dtype is rhs.dtype
        # Quotients of half precision are of single precision, and pointers are added to no pointer.
        if not same or lhs.dtype.is_ptr() or (len(args) > 3 and args[3]) or kwargs.get("div_or_mod"):
            return check(self, lhs, rhs, *args, **kwargs)
        return self.broadcast_impl_value(lhs, rhs)

    TritonSemantic.binary_op_type_checking_impl = checked


def _unwrap_constants_alone() -> None:
    """Most of what is unwrapped is a tensor or a plain value: nothing to look into for constants."""
    from triton.language import core

    unwrap, plain = core._unwrap_if_constexpr, {core.tensor, int, bool, float, str, NoneType}

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        return value.value if kind is core.constexpr else value if kind in plain else unwrap(value)

    core._unwrap_if_constexpr = unwrapped


def _call_functions_of_the_language_directly() -> None:
    """Each call passes a function that copies its arguments, and one that looks whether it is called in a kernel."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    def patch_attribute(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic, called = TritonSemantic(builder), inspect.unwrap(member)

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return called(*args, **kwargs)

        scope.set_attr(owner, name, call)

    interpreter._patch_attr = patch_attribute


def _ask_for(owner: type, name: str, answer: Callable[[Any], Any]) -> None:
    """Gives the objects of a class an attribute that is made when it is first read."""
    attribute = cached_property(answer)
    attribute.__set_name__(owner, name)
    setattr(owner, name, attribute)
