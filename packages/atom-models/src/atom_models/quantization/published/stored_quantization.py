"""`StoredQuantization`: the layouts of a quantized checkpoint's layers, as its config says and its tensors show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from atom_kernels.formats import Plain
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layer_quantization import HeldFormat, LayerQuantization
from atom_models.quantization.layouts import GptqLayout, PackedInt4Layout, PlainLayout, StoredLayout
from atom_models.quantization.layouts.stored import FLOATS
from atom_models.quantization.published.cache_scales import CacheScales, find_cache_scales
from atom_models.quantization.published.headers import Header, Headers
from atom_models.quantization.published.published_quantization import PublishedQuantization


@dataclass(frozen=True)
class StoredQuantization:
    """The layouts that `published` gives to layers, where `headers` do not say otherwise.

    Published configs are wrong in both directions: layers that they leave out are quantized, and layers that they do
    not leave out are plain.
    """

    published: PublishedQuantization
    headers: Headers | None = None

    @property
    def name(self) -> str:
        return self.published.name

    def for_layer(self, layer_name: str, dtype: torch.dtype) -> LayerQuantization:
        """Raises CheckpointError, naming the layer, where no layout of the config has the tensors that are there."""
        choice = self.published.choose(layer_name)
        stored = choice.layout or PlainLayout(dtype)
        present = self.headers.of_layer(layer_name) if self.headers else {}
        if not present or _has(stored, present):
            stored = _with_what_it_checks(stored, present)
            return LayerQuantization(stored, HeldFormat(inputs=stored.input_format), choice.rule)
        weight = present.get("weight")
        if weight is not None and weight.dtype in FLOATS:
            otherwise = f", but stored as {Plain(weight.dtype).name}" if choice.layout else ""
            return LayerQuantization(PlainLayout(dtype), rule=choice.rule + otherwise)
        for _, layout in self.published.groups:
            if layout is not None and _has(layout, present):
                layout = _with_what_it_checks(layout, present)
                held = HeldFormat(inputs=layout.input_format)
                return LayerQuantization(layout, held, f"{choice.rule}, but stored as {layout.name}")
        wanted = stored.expected(1, 1)
        found, expected = sorted(present), list(wanted)
        if set(expected) <= set(found):  # the names are right: a dtype is not
            found = [f"{name} in {_bare(present[name].dtype)}" for name in expected]
            expected = [f"{name} in {_bare(one.dtype)}" for name, one in wanted.items()]
        calls_for = f"the config calls for {', '.join(expected)} ({choice.rule})"
        raise CheckpointError(f"{layer_name} is stored as {', '.join(found)}, but {calls_for}")

    def stored_table(self, name: str, dtype: torch.dtype) -> StoredLayout:
        return PlainLayout(dtype)

    @property
    def cache_field(self) -> str | None:
        return self.published.cache_field if self.headers else None

    def cache_scales(self, attention: str) -> CacheScales | None:
        return find_cache_scales(attention, self.headers) if self.headers else None


def _has(layout: StoredLayout, present: Mapping[str, Header]) -> bool:
    """Whether the tensors of a layout are there; a weight in another number format is not."""
    expected = layout.expected(1, 1)
    weight = expected.get("weight")
    if weight is not None and "weight" in present and present["weight"].dtype not in (weight.dtype, *weight.dtypes):
        return False
    return set(expected) <= set(present)


def _with_what_it_checks(layout: StoredLayout, present: Mapping[str, Header]) -> StoredLayout:
    """The layout, which reads what it could do without, where that may contradict it."""
    if isinstance(layout, GptqLayout) and not layout.sorted_inputs and "g_idx" in present:
        return replace(layout, checks_groups=True)
    if isinstance(layout, PackedInt4Layout) and "weight_shape" in present:
        return replace(layout, checks_shape=True)
    return layout


def _bare(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
