"""What a linear waits for: its matrices in the checkpoint's layout, its bias, and the scheme that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from atom_kernels.formats import Plain
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_models.layers.held_weights import HeldWeights
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.quantization import DENSE_INPUT, InputFormat, LinearScheme, LinearSpec, UnnormedInput


class SchemeWeights:
    """The weights of one plan.

    Attributes:
        matrices: one below the other.
        bias: of all of them, if the spec has one; zeros where nothing was loaded.
    """

    def __init__(
        self, scheme: LinearScheme, spec: LinearSpec, matrices: Sequence[StoredMatrix], device: torch.device | str
    ) -> None:
        self.spec = spec
        self.matrices = MatrixStack(matrices, device, spec.out_features)
        self._chosen = scheme
        self.scheme = scheme.for_weights(spec, self.matrices.weight_format)
        self._device = device
        self._bias: torch.Tensor | None = None

    @property
    def bias(self) -> torch.Tensor:
        if self._bias is None:
            self._bias = torch.zeros(self.spec.out_features, dtype=self.spec.dtype, device=self._device)
        return self._bias

    @property
    def input_format(self) -> InputFormat:
        return self.scheme.input_format(self.spec)

    def is_quantized(self, platform: Platform) -> bool:
        """Whether the weights would be held in another format than plain numbers there."""
        spec = replace(self.spec, platform=platform)
        scheme = self._chosen.for_weights(spec, self.matrices.weight_format)
        return scheme.weight_format(spec) != Plain(spec.dtype)

    @property
    def plan(self) -> Plan:
        return self.scheme.plan(self.spec)

    def held_weights(self) -> HeldWeights:
        """What reports say of them."""
        names, stored = zip(*((matrix.name, matrix.layout.name) for matrix in self.matrices.matrices), strict=True)
        held = self.scheme.weight_format(self.spec).name
        return HeldWeights.run_by(self.plan, names, asked=names[0], stored=stored[0], held=held)

    def shapes(self) -> list[tuple[int, ...]]:
        return self.matrices.shapes() + ([(self.spec.out_features,)] if self.spec.bias else [])

    def finish(self, tied: torch.Tensor | None = None) -> Callable[..., torch.Tensor]:
        """The scheme's `apply`, with a plain tensor encoded first where the scheme wants another form.

        Args:
            tied: a plain matrix that is there already, used without copying it.
        """
        held = self.scheme.weight_format(self.spec)
        if tied is None:
            tensors = self.matrices.take(held)
        else:
            tensors = {"weight": tied} if held == Plain(tied.dtype) else held.quantize(tied)
        bias, self._bias = self.bias if self.spec.bias else None, None
        apply = self.scheme.finish(self.spec, tensors if bias is None else {**tensors, "bias": bias})
        input_format = self.input_format
        if input_format == DENSE_INPUT or isinstance(input_format, UnnormedInput):
            return apply
        return lambda x: apply(input_format.encode(x) if isinstance(x, torch.Tensor) else x)
