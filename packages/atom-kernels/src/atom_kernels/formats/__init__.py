"""Number formats of weight matrices: what they hold, their values, rounding to them, and cutting them."""

from atom_kernels.formats.codes import Codes
from atom_kernels.formats.cutting import cut, format_of_cuts
from atom_kernels.formats.float4 import Mxfp4, Nvfp4
from atom_kernels.formats.float8 import Float8
from atom_kernels.formats.integers import Integers, Offset
from atom_kernels.formats.nibbles import pack_nibbles, unpack_nibbles
from atom_kernels.formats.row_rounding import RowRounding
from atom_kernels.formats.weight_format import Part, Plain, WeightFormat, dequantized, num_bytes, spread, weight_specs

__all__ = [
    "Codes",
    "Float8",
    "Integers",
    "Mxfp4",
    "Nvfp4",
    "Offset",
    "Part",
    "Plain",
    "RowRounding",
    "WeightFormat",
    "cut",
    "dequantized",
    "format_of_cuts",
    "num_bytes",
    "pack_nibbles",
    "spread",
    "unpack_nibbles",
    "weight_specs",
]
