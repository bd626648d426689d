"""`GGUFQuantization`: matrices that a GGUF file holds in blocks of few bits stay packed, each in its own format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_models.quantization.layer_quantization import LayerQuantization
from atom_models.quantization.layouts import GGUF_PACKED, GGUFLayout, PlainLayout, StoredLayout


@dataclass(frozen=True)
class GGUFQuantization:
    """The layouts of a file's matrices. Types that no format holds are made plain numbers as they are read.

    Attributes:
        types: the type of each matrix as GGUF calls it, by the name of its layer in the model.
    """

    types: Mapping[str, str]
    name = "gguf"
    cache_field = None

    def for_layer(self, layer_name: str, dtype: torch.dtype) -> LayerQuantization:
        type_name = self.types.get(layer_name)
        if type_name in GGUF_PACKED:
            return LayerQuantization(GGUFLayout(type_name))
        return LayerQuantization(PlainLayout(dtype))

    def stored_table(self, name: str, dtype: torch.dtype) -> StoredLayout:
        return self.for_layer(name, dtype).stored

    def cache_scales(self, attention: str) -> None:
        return None
