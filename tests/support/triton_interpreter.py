"""Makes Triton's interpreter run the loops of our kernels, and quickly, for folders of tests that need it or a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from types import NoneType, SimpleNamespace
from typing import Any

import numpy
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
        _leave_operands_as_they_are()
        _make_tensors_of_one_number_or_axis_more_simply()
        _convert_bfloat16_by_its_bits()
        _look_at_the_size_of_numbers_at_once()
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
    """Types are compared by name, however often it is the same one."""
    from triton.language import core

    equal = core.dtype.__eq__
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def _leave_operands_as_they_are() -> None:
    """Operands are converted to one type, however often they have it, and copied to one shape, as NumPy does by itself.

    A number beside a tensor is made a tensor once for each type and shape. What this gives goes into one operation
    of elements, whose result has the whole shape.
    """
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    check, broadcast = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value
    shapes: dict[tuple[int, int], Any] = {}  # by the identities of two shapes, which are kept
    numbers: dict[tuple[Any, ...], Any] = {}

    def checked(self: Any, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # Quotients of half precision are of single precision.
        if not kwargs and (len(args) < 3 or args[2:] == (True,)):
            of_tensors = type(lhs) is core.tensor, type(rhs) is core.tensor
            if of_tensors == (True, True):
                offset = args[:1] == (True,) and lhs.dtype.is_ptr() and rhs.dtype.is_int()
                if offset or (lhs.dtype is rhs.dtype and not lhs.dtype.is_ptr()):
                    return spread(self, lhs, rhs)
            elif of_tensors == (True, False) and type(rhs) in (int, float):
                return beside(self, lhs, rhs, args)
            elif of_tensors == (False, True) and type(lhs) in (int, float) and not rhs.dtype.is_ptr():
                return beside(self, rhs, lhs, args)[::-1]
        return check(self, lhs, rhs, *args, **kwargs)

    def beside(self: Any, lhs: Any, number: float, args: tuple[Any, ...]) -> tuple[Any, Any]:
        # Pointers have as many types as there are, and the same numbers beside them all.
        kind = args[:1] if lhs.dtype.is_ptr() else lhs.dtype.name
        key = kind, id(lhs.shape), type(number), number
        if key not in numbers:
            left, right = check(self, lhs, number, *args)
            if left is not lhs:
                return left, right
            numbers[key] = right
        return lhs, numbers[key]

    def spread(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        key = id(lhs.shape), id(rhs.shape)
        if key not in shapes:
            shapes[key] = broadcast(self, lhs, rhs)[0].type.shape  # which checks them
        return spread_to(lhs, shapes[key]), spread_to(rhs, shapes[key])

    def spread_to(value: Any, shape: Any) -> Any:
        if value.type.is_block() and value.type.shape is shape:
            return value
        return core.tensor(value.handle, core.block_type(value.dtype, shape))

    TritonSemantic.binary_op_type_checking_impl = checked


def _make_tensors_of_one_number_or_axis_more_simply() -> None:
    """NumPy's own functions for it look at much more than the interpreter gives them."""
    from triton.runtime import interpreter

    made = interpreter.TensorHandle

    def expand(self: Any, arg: Any, axis: int) -> Any:
        shape = arg.data.shape
        return made(arg.data.reshape(*shape[:axis], 1, *shape[axis:]), arg.dtype.scalar)

    def splat(self: Any, type_of_triton: Any, arg: Any) -> Any:
        data = numpy.empty(type_of_triton.shape.values, interpreter._get_np_dtype(arg.dtype))
        data.fill(arg.data.item())
        return made(data, arg.dtype.scalar)

    builder = interpreter.InterpreterBuilder
    builder.create_expand_dims, builder.create_splat = expand, splat


def _convert_bfloat16_by_its_bits() -> None:
    """The interpreter takes each number apart, and cuts the lower half off a float32; small ones it changes."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        kinds = source.name, target.name
        if rounding is not None or kinds not in (("bf16", "fp32"), ("fp32", "bf16")):
            return convert(data, source, target, rounding)
        widens = kinds[0] == "bf16"
        bits = data.view(numpy.uint16 if widens else numpy.uint32)
        size = bits & (0x7FFF if widens else 0x7FFFFFFF)
        if ((size > 0) & (size < (0x80 if widens else 0x800000))).any():
            return convert(data, source, target, rounding)
        return bits.astype(numpy.uint32) << 16 if widens else (bits >> 16).astype(numpy.uint16)

    interpreter._convert_float = converted


def _look_at_the_size_of_numbers_at_once() -> None:
    """Each array is asked whether its numbers fit its type, twice."""
    from triton.language import core
    from triton.runtime import interpreter

    refuse = interpreter.TensorHandle.__post_init__

    def made_handle(self: Any, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if data.itemsize > 1 and type(dtype) is not core.pointer_type and data.itemsize * 8 > dtype.primitive_bitwidth:
            refuse(self)

    interpreter.TensorHandle.__init__ = made_handle


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
