"""The adapters of AITER, held by tests against its emulator."""

from __future__ import annotations

from tools.mutate.operators import ADAPTER_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_SOURCES = "atom-kernels/src/atom_kernels/aiter"
_TESTS = "atom-kernels/tests/aiter_backend/test_aiter"
# A file of adapters -> the tests that should find its mistakes.
_TESTS_OF: dict[str, tuple[str, ...]] = {
    "all_reduce.py": ("all_reduce",),
    "moe/quantized_experts.py": ("quantized_experts",),
    "moe/grouped_int4.py": ("grouped_int4",),
    "moe/int4_codes.py": ("quantized_experts",),
    "moe/*.py": ("moe",),
    "quantized/rounded_all_reduce.py": ("rounded_all_reduce",),
    "quantized/rounded_*.py": ("rounded_rows",),
    "quantized/batched_*.py": ("head_products",),
    "quantized/*.py": ("quantized", "rounded_rows"),
    "attention/cache_write.py": (
        "cache_write",
        "strided",
        "attention",
    ),
    "attention/head_steps.py": (
        "cache_write",
        "attention",
    ),
    "attention/latent.py": (
        "strided",
        "latent",
        "attention_graphs",
    ),
    "attention/latent_backend.py": ("latent",),
    "attention/latent_metadata.py": (
        "strided",
        "latent",
        "attention_graphs",
    ),
    "attention/latent_prologue.py": (
        "strided",
        "latent",
    ),
    "attention/layouts.py": (
        "layouts",
        "cache_write",
        "attention",
    ),
    "tables.py": (
        "tables",
        "cache_write",
        "attention",
        "latent",
    ),
    "attention/*.py": (
        "strided",
        "attention",
        "attention_graphs",
    ),
    "batched_gemm.py": (
        "head_products",
        "latent",
    ),
    "latent_products.py": ("head_products",),
    "**/*.py": (
        "parity",
        "graph_safety",
    ),
}
HARMLESS: Harmless = {
    ("pages.py: list_pages", "width", "width + 1"): "pages end where tokens do, however wide the table",
    ("aiter/quantized/rounded_activation.py", "4096", "4097"): "sizes are whole groups of 128",
    ("aiter/quantized/rounded_activation.py", "6144", "6145"): "sizes are whole groups of 128",
    (
        "aiter/quantized/rounded_all_reduce.py",
        "rows.nbytes <= ONE_STAGE_BYTES",
        "rows.nbytes < ONE_STAGE_BYTES",
    ): "of exactly so many bytes both ways are right",
    ("aiter/quantized/rounded_all_reduce.py", "1", "2"): "rows are whole packs of 16 bytes",
    ("aiter/quantized/linears.py", "16", "17"): "rows at every address are copied, which costs time alone",
    **{
        ("aiter/quantized/mxfp4.py", f'"{first}", "{second}"', f'"{second}", "{first}"'): "the order of questions"
        for first, second in (
            ("gemm_a4w4", "per_1x32_f4_quant_hip"),
            ("per_1x32_f4_quant_hip", "e8m0_shuffle"),
            ("e8m0_shuffle", "shuffle_weight"),
        )
    },
    **{
        ("aiter/moe/grouped_int4.py", f'"{first}", "{second}"', f'"{second}", "{first}"'): "the order of questions, too"
        for first, second in (("fused_moe", "shuffle_weight"), ("shuffle_weight", "pack_int8_to_packed_int4"))
    },
    ("aiter/attention/latent_prologue.py", '"k_scale", "q_scale"', '"q_scale", "k_scale"'): "both are one",
    (
        "aiter/attention/head_steps.py",
        '"input_x", "input_y"',
        '"input_y", "input_x"',
    ): "queries and keys are turned alike",
    (
        "aiter/attention/shuffled.py",
        "tokens.q.contiguous()",
        "tokens.q",
    ): "pa_fwd_asm is told one stride; whether its output has it too, AITER does not say, so they are made the same",
    ("aiter/rotary.py", '"input_x", "input_y"', '"input_y", "input_x"'): "queries and keys are turned alike, too",
    (
        "aiter/attention/layouts.py",
        "packed.permute(0, 3, 1, 2, 4).flatten(3).contiguous()",
        "packed.permute(0, 3, 1, 2, 4).flatten(3)",
    ): "what is flattened across dimensions that lay apart is a copy already",
    (
        "aiter/attention/layouts.py",
        "shuffled.permute(0, 2, 4, 1, 3).flatten(1, 2).contiguous()",
        "shuffled.permute(0, 2, 4, 1, 3).flatten(1, 2)",
    ): "a copy already, too",
    ("aiter/attention/unified.py", '"k_descale", "v_descale"', '"v_descale", "k_descale"'): "both are one scale of 1",
    (
        "aiter/attention/cache_write.py: _rope_cache",
        '"k_scale", "v_scale"',
        '"v_scale", "k_scale"',
    ): "here both are one",
    (
        "aiter/attention/cache_write.py: _reshape_and_cache",
        '"k_scale", "v_scale"',
        '"v_scale", "k_scale"',
    ): "one is both",
    ("aiter/rotary.py", "False", "True"): "all that is handed over turns: nothing is left at either end",
    ("aiter/rotary.py", "rotary_dim", "rotary_dim + 1"): "what lies past the angles is not turned",
    ("aiter/norm.py", '"input", "residual_in"', '"residual_in", "input"'): "a sum has no order",
    (
        "aiter/moe/routing.py",
        "group_size > _EXPERTS_OF_A_THREAD",
        "group_size >= _EXPERTS_OF_A_THREAD",
    ): "1, 2, 4 or 8 groups of exactly 32 are a power of two, which never comes here",
}

ADAPTERS = Part(
    name="adapters",
    files={f"{_SOURCES}/{file}": [f"{_TESTS}_{name}.py" for name in names] for file, names in _TESTS_OF.items()},
    operators=ADAPTER_OPERATORS,
    harmless=HARMLESS,
    # They find and call AITER, and have tests of their own: no adapter is in them.
    left_out=("__init__.py", "api.py", "functions.py", "library.py", "report.py", "sources.py"),
)
