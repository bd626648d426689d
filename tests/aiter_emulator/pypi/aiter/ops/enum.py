"""The library's enums."""

from tests.aiter_emulator.semantics.enums import bound_enum

ActivationType = bound_enum("ActivationType", No=-1, Silu=0, Gelu=1, Swiglu=2)
QuantType = bound_enum("QuantType", No=0, per_Tensor=1, per_Token=2, per_1x32=3, per_1x128=4, per_128x128=5)
