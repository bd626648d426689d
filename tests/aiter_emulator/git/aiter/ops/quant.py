"""Quantizers in plain torch."""

import functools

from tests.aiter_emulator.semantics import quant
from tests.aiter_emulator.semantics.quant import per_tensor_quant as per_tensor_quant
from tests.aiter_emulator.semantics.quant import pertoken_quant as pertoken_quant


@functools.lru_cache
def get_torch_quant(qType):
    return quant.torch_quant(qType.name)
