"""Whether an operator holds its weights in a number format: it does where a kernel of the platform reads the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom_kernels.formats import Codes, Integers, WeightFormat
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.asked_rows import with_rows_asked_for
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.operator import Op
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.layer_quantization import HeldFormat

# Kernels take inputs of this size in any format.
_ANY_SIZE = 1024


@dataclass(frozen=True)
class Packable:
    """A kind of operator whose weights may be packed.

    Attributes:
        weights: what messages call its weights.
        op: the operator.
        of_any_size: dtype -> a problem of plain weights, of sizes that kernels take in any format.
        pack: (problem, a format for each matrix, the format that activations may be rounded to) -> packed problem.
        as_asked: (packed problem, platform) -> the problem with activations rounded where who serves asks for it.
        read_by_torch: formats that torch multiplies as they are: they are kept where no kernel reads them.
    """

    weights: str
    op: Op
    of_any_size: Callable[[torch.dtype], Any]
    pack: Callable[[Any, Sequence[WeightFormat], WeightFormat | None], Any]
    as_asked: Callable[[Any, Platform], Any] = lambda problem, platform: problem
    read_by_torch: Sequence[WeightFormat] = ()


LINEARS = Packable(
    "weights",
    LINEAR,
    lambda dtype: LinearProblem(_ANY_SIZE, _ANY_SIZE, dtype),
    lambda problem, formats, inputs: replace(problem, weight_format=formats[0], input_format=inputs),
    as_asked=with_rows_asked_for,
    read_by_torch=(Integers(8),),
)
EXPERTS = Packable(
    "experts",
    MOE_EXPERTS,
    lambda dtype: ExpertsProblem(2, 1, _ANY_SIZE, _ANY_SIZE, dtype),
    lambda problem, formats, inputs: replace(
        problem, gate_up_format=formats[0], down_format=formats[-1], input_format=inputs
    ),
)


def held_problem(
    kind: Packable, plain: Any, formats: Sequence[WeightFormat], held: HeldFormat, platform: Platform
) -> Any:
    """The problem with its matrices in these formats, or `plain` where no kernel reads them.

    Torch makes plain numbers of packed weights at each call, which is slower than plain weights.

    Args:
        plain: the problem of plain weights.
        formats: one for each matrix; one plain matrix makes all of them plain.
        held: what the quantization says of the weights.

    Raises:
        UnsupportedQuantizationError: weights are to be rounded to a format that no kernel of this machine reads.
    """
    problem = kind.as_asked(kind.pack(plain, formats, held.inputs), platform)
    is_packed = all(one.codes is not Codes.PLAIN for one in formats)
    if formats[0] in kind.read_by_torch or (is_packed and select(kind.op, problem, platform).has_kernel):
        return problem
    if is_packed and held.weights is not None:
        reason = why_never_packed(kind, formats[0], plain.dtype, platform, input_format=held.inputs)
        if reason is not None:
            raise UnsupportedQuantizationError(f"{kind.weights} are not rounded to {formats[0].name} here: {reason}")
    return plain


def why_never_packed(
    kind: Packable,
    weight_format: WeightFormat,
    dtype: torch.dtype,
    platform: Platform,
    *,
    input_format: WeightFormat | None = None,
) -> str | None:
    """Why no kernel of the platform reads the format, whatever the sizes of the weights; None where one does.

    Args:
        input_format: what activations may be rounded to: some kernels want to.
    """
    packed = kind.pack(kind.of_any_size(dtype), (weight_format,), input_format)
    if select(kind.op, packed, platform).has_kernel:
        return None
    # What kernels of plain weights say of every format is no reason.
    said = {
        backend.supports(packed, platform): packed.why_not_plain()
        for backend in kind.op.ordered_backends()
        if not backend.is_fallback and platform.why_not(backend.name) is None
    }
    return "; ".join(one for one, of_plain in said.items() if one and one != of_plain) or "there is no kernel for it"
