"""Layers with a cache: their problems and plans, what they keep, and the arithmetic that kernels are held to."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_KERNELS = "atom-kernels/src/atom_kernels"
_CORE = "atom-core/src/atom_core"
_PLAN_TESTS = (
    "atom-kernels/tests/test_mixer_problems.py",
    "atom-models/tests/test_mixers.py",
    "atom-kernels/tests/test_attention.py",
    "atom-kernels/tests/test_latent_attention.py",
    "atom-kernels/tests/test_float8_cache.py",
    "atom-kernels/tests/test_float8_latents.py",
    "atom-kernels/tests/test_cache_write.py",
    "atom-kernels/tests/test_plans.py",
    "atom-kernels/tests/test_operators_parity.py",
    "atom-models/tests/test_operators_of_a_step.py",
    "atom-models/tests/test_load_model.py",
    "atom-vllm/tests/test_registration.py",
    "atom-vllm/tests/test_cache_view.py",
    "atom-vllm/tests/test_attention_in_layers.py",
)
_CACHE_TESTS = (
    "atom-core/tests/test_cache_pages.py",
    "atom-core/tests/test_cache_layouts.py",
    "atom-core/tests/test_cache_size.py",
    "atom-core/tests/test_device_memory.py",
    "atom-core/tests/test_cache_groups.py",
)
_ON_A_GPU = "it runs where a GPU is, and so do its tests (`-m gpu`)"
_EXAMPLES = "numbers that `explain`, `check` and `bench` try: others do as well"
HARMLESS: Harmless = {
    **{
        (f"attention/{file}: {scope}", "*", "*"): _EXAMPLES
        for file in ("ops.py", "mla/ops.py")
        for scope in ("(module)", "_explained", "_parity_steps", "_bench_steps")
    },
    **{
        (
            f"attention/{place}",
            "-(-length // block_size)",
            "(-(-length // block_size)) + 1",
        ): "what is beyond is cut off"
        for place in ("torch_backend.py: _cut", "mla/native_steps.py: _slots")
    },
    ("cache/device_memory.py: count_weights_per_token", "*", "*"): _ON_A_GPU,
    ("cache/device_memory.py: measure_memory", "*", "*"): _ON_A_GPU,
    ("cache/device_memory.py: give_memory_back", "*", "*"): _ON_A_GPU,
    ("cache/device_memory.py", "8 << 20", "*"): "an estimate",
    ("cache/device_memory.py", "8", "9"): "an estimate, too",
    ("cache/device_memory.py", "20", "21"): "an estimate, too",
}

MIXERS = Part(
    name="mixers",
    files={
        f"{_KERNELS}/mixers/*.py": _PLAN_TESTS,
        f"{_KERNELS}/attention/*.py": _PLAN_TESTS,
        f"{_KERNELS}/attention/mla/*.py": _PLAN_TESTS,
        f"{_CORE}/worker/cache/*.py": _CACHE_TESTS,
        f"{_CORE}/worker/model/cached_mixers.py": _CACHE_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
    # Kernels of GPUs have tests of their own, and searches for quick settings decide nothing but speed.
    left_out=("__init__.py", "triton_backend.py", "triton_products.py", "triton_prologue.py", "tuning.py"),
)
