"""How published checkpoints hold quantized matrices."""

from atom_models.quantization.layouts.awq_gptq import AwqLayout, GptqLayout
from atom_models.quantization.layouts.bitsandbytes import Bitsandbytes4Layout
from atom_models.quantization.layouts.float4 import Mxfp4BlocksLayout, Mxfp4Layout, Nvfp4Layout
from atom_models.quantization.layouts.float8 import Float8Layout
from atom_models.quantization.layouts.gguf import GGUF_PACKED, GGUFLayout
from atom_models.quantization.layouts.integers import Int8Layout, PackedInt4Layout, PackedInt8Layout
from atom_models.quantization.layouts.plain import PlainLayout
from atom_models.quantization.layouts.stored import ExpectedWeight, StoredLayout

__all__ = [
    "GGUF_PACKED",
    "AwqLayout",
    "Bitsandbytes4Layout",
    "ExpectedWeight",
    "Float8Layout",
    "GGUFLayout",
    "GptqLayout",
    "Int8Layout",
    "Mxfp4BlocksLayout",
    "Mxfp4Layout",
    "Nvfp4Layout",
    "PackedInt4Layout",
    "PackedInt8Layout",
    "PlainLayout",
    "StoredLayout",
]
