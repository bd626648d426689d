"""How published checkpoints hold quantized matrices."""

from atom_models.quantization.layouts.awq_gptq import AwqLayout, GptqLayout
from atom_models.quantization.layouts.float4 import Mxfp4Layout, Nvfp4Layout
from atom_models.quantization.layouts.float8 import Float8Layout
from atom_models.quantization.layouts.integers import Int8Layout, PackedInt4Layout
from atom_models.quantization.layouts.stored import Expected, HasShape, StoredLayout, check_tensors

__all__ = [
    "AwqLayout",
    "Expected",
    "Float8Layout",
    "GptqLayout",
    "HasShape",
    "Int8Layout",
    "Mxfp4Layout",
    "Nvfp4Layout",
    "PackedInt4Layout",
    "StoredLayout",
    "check_tensors",
]
