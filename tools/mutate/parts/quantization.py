"""Number formats, the layouts of published files, what a config says of layers, and what plans count of it."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_KERNELS = "atom-kernels/src/atom_kernels"
_MODELS = "atom-models/src/atom_models"
_FORMAT_TESTS = (
    "atom-kernels/tests/test_numbers_of_formats.py",
    "atom-kernels/tests/test_weight_formats.py",
    "atom-models/tests/test_stored_layouts.py",
    "atom-models/tests/test_held_formats.py",
    "atom-models/tests/test_quantized_shards.py",
    "atom-models/tests/test_packed_experts.py",
)
_LAYOUT_TESTS = (
    "atom-models/tests/test_stored_layouts.py",
    "atom-models/tests/test_published_quantization.py",
    "atom-models/tests/test_published_formats.py",
    "atom-models/tests/test_quantized_checkpoints.py",
    "atom-models/tests/test_cache_scales_of_checkpoints.py",
    "atom-models/tests/test_bad_quantized_files.py",
    "atom-models/tests/test_quantized_shards.py",
    "atom-models/tests/test_gguf_packed.py",
    "atom-models/tests/test_held_formats.py",
    "atom-models/tests/test_packed_experts.py",
    "atom-models/tests/test_attention_layers.py",
    "atom-models/tests/test_load_model.py",
    "atom-vllm/tests/test_stored_weights.py",
    "atom-vllm/tests/test_declined_features.py",
)
_PLAN_TESTS = (
    "atom-models/tests/test_placement.py",
    "atom-models/tests/test_published_configs.py",
    "atom-models/tests/test_model_requirements.py",
    "atom-models/tests/test_layer_weights.py",
    "atom-models/tests/test_published_checkpoints.py",
    "atom-server/tests/test_plan.py",
    "atom-core/tests/test_cache_size.py",
    "atom-core/tests/test_tensor_parallel_refusals.py",
)
_PACKED_TESTS = (
    "atom-kernels/tests/test_packed_numbers.py",
    "atom-kernels/tests/test_packed_choice.py",
    "atom-kernels/tests/triton_kernels/test_triton_packed.py",
)
_ESTIMATES = "a constant of estimated times, by which one of several right ways to multiply is chosen"
HARMLESS: Harmless = {
    ("launch_model.py: _resident", "copies * config.block_n", "*"): "a guess at registers: speed alone",
    ("launch_model.py: (module)", "*", "*"): _ESTIMATES,
    ("configs.py: (module)", "8192", "8193"): _ESTIMATES,
    ("awq_gptq.py: to_parts", "0", "1"): "which zero point the others are compared with is no matter: all must be one",
}

QUANTIZATION = Part(
    name="quantization",
    files={
        f"{_KERNELS}/formats/*.py": _FORMAT_TESTS,
        f"{_KERNELS}/linear/triton/choice/launch_model.py": _PACKED_TESTS,
        f"{_KERNELS}/linear/triton/choice/configs.py": _PACKED_TESTS,
        f"{_KERNELS}/linear/triton/skinny_configs.py": _PACKED_TESTS,
        f"{_KERNELS}/linear/triton/packed_weights.py": _PACKED_TESTS,
        f"{_MODELS}/quantization/**/*.py": _LAYOUT_TESTS,
        f"{_MODELS}/requirements/*.py": _PLAN_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
