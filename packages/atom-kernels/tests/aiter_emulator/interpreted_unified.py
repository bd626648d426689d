"""Runs the wheel's Triton kernel of unified attention in Triton's interpreter, and compares the emulator with it.

A process of its own: Triton reads TRITON_INTERPRET when it is imported. The one argument is the wheel.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

import torch

from paged_sequences import PagedSequences
from tests.aiter_emulator.semantics.unified import unified_attention
from triton_interpreter import what_to_ignore

KERNELS = "aiter/ops/triton/_triton_kernels/unified_attention.py"
HEADS, KV_HEADS, DIM, PAGE, SCALE = 6, 2, 32, 16, 0.2
STARTS = torch.tensor([0, 4, 5, 8], dtype=torch.int32)
OPTIONS = (
    {},
    {"window": 5},
    {"sinks": torch.linspace(-1, 2, HEADS)},
    {"softcap": 2.0},
    {"alibi_slopes": torch.linspace(0.1, 0.9, HEADS)},
    {"window": 7, "sinks": torch.linspace(-1, 2, HEADS), "softcap": 3.0},
)


def kernels(wheel: Path) -> ModuleType:
    """The wheel's module of kernels; of the rest of AITER it imports one dtype."""
    for name in ("aiter", "aiter.ops", "aiter.ops.triton", "aiter.ops.triton.utils", "aiter.ops.triton.utils.types"):
        sys.modules[name] = ModuleType(name)
    sys.modules["aiter.ops.triton.utils.types"].e4m3_dtype = torch.float8_e4m3fnuz
    file = zipfile.ZipFile(wheel).extract(KERNELS, tempfile.mkdtemp(prefix="aiter-kernels-"))
    spec = importlib.util.spec_from_file_location("wheel_kernels", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_the_wheel(module: ModuleType, q: torch.Tensor, paged: PagedSequences, tile: int, **options) -> torch.Tensor:
    out, group = torch.empty_like(q), HEADS // KV_HEADS
    strides = {
        f"stride_{name}_cache_{i}": cache.stride(i)
        for name, cache in (("k", paged.keys), ("v", paged.values))
        for i in range(4)
    }
    num_sequences = len(STARTS) - 1
    module.kernel_unified_attention_2d[(KV_HEADS, len(q) // (16 // group) + num_sequences)](
        output_ptr=out,
        query_ptr=q,
        key_cache_ptr=paged.keys,
        value_cache_ptr=paged.values,
        sink_ptr=options.get("sinks"),
        block_tables_ptr=paged.table,
        seq_lens_ptr=paged.lengths,
        alibi_slopes_ptr=options.get("alibi_slopes"),
        qq_bias_ptr=None,
        scale=SCALE,
        k_scale=None,
        v_scale=None,
        out_scale=1.0,
        softcap=options.get("softcap", 0.0),
        num_query_heads=HEADS,
        num_queries_per_kv=group,
        block_table_stride=paged.table.stride(0),
        query_stride_0=q.stride(0),
        query_stride_1=q.stride(1),
        output_stride_0=out.stride(0),
        output_stride_1=out.stride(1),
        qq_bias_stride_0=0,
        BLOCK_SIZE=PAGE,
        TILE_SIZE=tile,
        HEAD_SIZE=DIM,
        HEAD_SIZE_PADDED=DIM,
        USE_ALIBI_SLOPES="alibi_slopes" in options,
        USE_QQ_BIAS=False,
        USE_SOFTCAP="softcap" in options,
        USE_SINKS="sinks" in options,
        SLIDING_WINDOW=options.get("window", 0),
        **strides,
        query_start_len_ptr=STARTS,
        BLOCK_Q=16 // group,
        num_seqs=num_sequences,
        BLOCK_M=16,
        USE_FP8=False,
    )
    return out


def by_the_emulator(q: torch.Tensor, paged: PagedSequences, **options) -> torch.Tensor:
    out, window = torch.empty_like(q), options.pop("window", 0)
    given = {"softcap": 0.0, "alibi_slopes": None, "sinks": None} | options
    lengths = {"max_seqlen_q": 4, "seqused_k": paged.lengths, "max_seqlen_k": 70}
    caches = {"k": paged.keys, "v": paged.values, "block_table": paged.table, "k_descale": None, "v_descale": None}
    unified_attention(
        q,
        out=out,
        cu_seqlens_q=STARTS,
        softmax_scale=SCALE,
        causal=True,
        window_size=(window - 1, 0),
        **caches,
        **lengths,
        **given,
    )
    return out


def main(wheel: Path) -> None:
    what_to_ignore()
    module = kernels(wheel)
    paged = PagedSequences.of([33, 9, 70], PAGE, KV_HEADS, DIM, torch.float32)
    q = torch.randn(8, HEADS, DIM)
    for options in OPTIONS:
        # Tiles of several pages mask what lies behind the end of a sequence, which is NaN here.
        torch.testing.assert_close(by_the_emulator(q, paged, **options), by_the_wheel(module, q, paged, 64, **options))
    assert by_the_wheel(module, q, paged, PAGE).isnan().any(), "tiles of one page do not read it to its end"
    print(f"{len(OPTIONS)} cases are alike")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
