"""`Op` and `Backend`: an operator is its torch reference, the ways to run it, and the problems it is checked on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from atom_kernels.formats import RowRounding
    from atom_kernels.platform import Platform

    Weights = Mapping[str, torch.Tensor | None]
    # What a backend hands out for one problem and one set of weights: inputs -> outputs.
    Kernel = Callable[..., Any]

# The order in which `select` tries backends. "native" is our own C, compiled here; "onednn" needs no compiler.
FALLBACK = "torch"
BACKEND_ORDER = ("aiter", "triton", "native", "onednn", FALLBACK)


@dataclass(frozen=True)
class WeightSpec:
    """One weight of a problem as checkpoints hold it; `prepare` refuses anything else by name."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    optional: bool = False

    @property
    def num_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


class WeightError(ValueError):
    """Weights given to `prepare` are not those that the problem calls for."""


def check_weights(
    operator: str, specs: Mapping[str, WeightSpec], given: Mapping[str, torch.Tensor | None]
) -> dict[str, torch.Tensor | None]:
    """The weights of `specs` as they were given, with None for optional ones that were not.

    Raises:
        WeightError: a weight is missing, unknown, or of another shape or dtype; it names the weight.
    """
    unknown = sorted(set(given) - set(specs))
    if unknown:
        raise WeightError(f"{operator} takes the weights {sorted(specs)}, not {', '.join(unknown)}")
    weights = {name: given.get(name) for name in specs}
    for name, spec in specs.items():
        tensor = weights[name]
        if tensor is None:
            if not spec.optional:
                raise WeightError(f"{operator} needs the weight {name} {list(spec.shape)} {spec.dtype}")
        elif tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
            raise WeightError(
                f"{operator}: {name} is {list(tensor.shape)} {tensor.dtype}, "
                f"but the problem calls for {list(spec.shape)} {spec.dtype}"
            )
    return weights


def keep_source(problem: Any, weights: Weights) -> Weights:
    """The packing of layout "source": the tensors themselves, nothing copied."""
    return weights


def same_bytes(problem: Any, source_bytes: int) -> int:
    """Bytes of a layout that only reorders its weights."""
    return source_bytes


@dataclass(frozen=True)
class WeightLayout:
    """How weights are stored for an implementation.

    Attributes:
        name: two rows of a plan whose layouts have one name share one packed copy.
        pack: ``(problem, weights) -> packed``; called once, after loading.
        num_bytes: ``(problem, source_bytes) -> bytes`` of the packed copy.
    """

    name: str
    pack: Callable[[Any, Weights], Weights] = keep_source
    num_bytes: Callable[[Any, int], int] = same_bytes


SOURCE = WeightLayout("source")


def any_problem(problem: Any, platform: Platform) -> None:
    """What a backend `supports` that runs every problem of its operator wherever its library is."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to run an operator.

    Attributes:
        name: one of `BACKEND_ORDER`.
        implementation: what `explain` prints: the library and the trick.
        bind: ``(problem, packed weights) -> kernel``; the kernel takes the op's inputs. Heavy imports belong in here.
        supports: ``(problem, platform) -> None`` if it can run the problem there, else the reason why not.
        layout: how it wants its weights.
        max_rows: largest leading dimension it should serve, None for any; a callable decides by problem and platform.
        tolerance: ``problem -> Tolerance`` of a vendor's library where it promises less than `Op.tolerance`.
        row_rounding: how it rounds its rows, where another kernel may do so and hand it codes and scales.
        takes_neighbors: whether its kernel takes in what stands around a product.
        most_rows_with_term: up to so many rows a linear's kernel takes, after the op's inputs, a `LowRankTerm` to add.
    """

    name: str
    implementation: str
    bind: Callable[[Any, Weights], Kernel]
    supports: Callable[[Any, Platform], str | None] = any_problem
    layout: WeightLayout = SOURCE
    max_rows: int | Callable[[Any, Platform], int | None] | None = None
    tolerance: Callable[[Any], Tolerance] | None = None
    row_rounding: RowRounding | None = None
    takes_neighbors: bool = False
    most_rows_with_term: int = 0

    def __post_init__(self) -> None:
        if self.name not in BACKEND_ORDER:
            raise ValueError(f"backend name {self.name!r} is not one of {', '.join(BACKEND_ORDER)}")

    @classmethod
    def of(cls, name: str, implementation: str, kernel: Kernel, **options: Any) -> Backend:
        """A backend whose kernel is the same for all problems, of an operator that has no weights."""
        return cls(name=name, implementation=implementation, bind=lambda problem, weights: kernel, **options)

    @property
    def is_fallback(self) -> bool:
        """It is plain torch, which runs where no kernel does."""
        return self.name == FALLBACK

    def why_not(self, problem: Any, platform: Platform) -> str | None:
        """None if it can run the problem there, else the reason why not."""
        return platform.why_not(self.name) or self.supports(problem, platform)

    def rows_limit(self, problem: Any, platform: Platform) -> int | None:
        return self.max_rows(problem, platform) if callable(self.max_rows) else self.max_rows


@dataclass(frozen=True)
class Tolerance:
    """How far a backend may be from the float32 reference: ``|actual - expected| <= atol + rtol * |expected|``."""

    atol: float
    rtol: float


@dataclass(frozen=True)
class Work:
    """The least that one call must do: bytes moved (weights, inputs, outputs once each), floating point operations."""

    num_bytes: int
    flops: int = 0


def no_weights(problem: Any) -> Mapping[str, WeightSpec]:
    return {}


def as_they_are(outputs: Any) -> Any:
    return outputs


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operator: contract, reference, backends, and what it is checked and measured on.

    Attributes:
        name: also its name under ``torch.ops.atom_kernels``.
        contract: the public function whose docstring is the contract; it is plain torch and is the reference.
        reference: ``(problem, weights, *inputs) -> outputs`` through `contract`.
        schema: the opaque op's, without the leading plan handle, e.g. ``"(Tensor x) -> Tensor"``.
        fake: ``(problem, *inputs) -> outputs`` that only has the right shapes and dtypes.
        backends: any order; `select` sorts by `BACKEND_ORDER`.
        weights: ``problem -> {name: WeightSpec}``, what `Plan.prepare` takes.
        make_inputs: ``(problem, num_rows, generator) -> (weights, inputs)``, random and valid.
        parity_problems: odd shapes and every dtype, for `check` and the tests.
        examples: problems of real models, for `explain` and `bench`.
        tolerance: ``problem -> Tolerance`` against the reference computed in float32 (or in the problem's dtype).
        work: ``(problem, num_rows) -> Work``.
        written: places among the inputs of those that a call writes, in place: these are its outputs, and it returns
            nothing.
        comparable: ``outputs -> outputs`` that are equal where both are right: an order that is free becomes one.
    """

    name: str
    contract: Callable[..., Any]
    reference: Callable[..., Any]
    schema: str
    fake: Callable[..., Any]
    backends: tuple[Backend, ...]
    make_inputs: Callable[[Any, int, torch.Generator], tuple[Weights, tuple[Any, ...]]]
    parity_problems: Callable[[], tuple[Any, ...]]
    examples: Callable[[], tuple[Any, ...]]
    tolerance: Callable[[Any], Tolerance]
    work: Callable[[Any, int], Work]
    weights: Callable[[Any], Mapping[str, WeightSpec]] = no_weights
    parity_rows: tuple[int, ...] = field(default=(1, 2, 5, 17, 67))
    written: tuple[int, ...] = ()
    comparable: Callable[[Any], Any] = as_they_are

    def source_bytes(self, problem: Any) -> int:
        """Bytes of the weights as they are loaded, optional ones not counted."""
        return sum(spec.num_bytes for spec in self.weights(problem).values() if not spec.optional)

    def ordered_backends(self) -> tuple[Backend, ...]:
        """Backends in the order of `BACKEND_ORDER`; within a name as listed."""
        return tuple(sorted(self.backends, key=lambda backend: BACKEND_ORDER.index(backend.name)))
