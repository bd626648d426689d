"""Shapes of published models that no tuned table has, and that the tuner itself does not know."""

from __future__ import annotations

from benchmarks.kernels.shapes import Mixture, ModelShape

# Hidden size, heads, heads of keys, their size, vocabulary, size inside the MLP, which is taken as gated in all.
DENSE = {
    "Qwen2.5-1.5B": ModelShape(1536, 12, 2, 128, 151936, 8960),
    "TinyLlama-1.1B": ModelShape(2048, 32, 4, 64, 32000, 5632),
    "MiniCPM-2B": ModelShape(2304, 36, 36, 64, 122753, 5760),
    "EXAONE-3.5-2.4B": ModelShape(2560, 32, 8, 80, 102400, 7168),
    "Llama-3.2-3B": ModelShape(3072, 24, 8, 128, 128256, 8192),
    "Gemma-2-9B": ModelShape(3584, 16, 8, 256, 256000, 14336),
    "Falcon-7B": ModelShape(4544, 71, 1, 64, 65024, 18176),
    "Gemma-2-27B": ModelShape(4608, 32, 16, 128, 256000, 36864),
    "Llama-2-13B": ModelShape(5120, 40, 40, 128, 32000, 13824),
    "Phi-4": ModelShape(5120, 40, 10, 128, 100352, 17920),
    "Qwen3-32B": ModelShape(5120, 64, 8, 128, 151936, 25600),
    "InternLM2-20B": ModelShape(6144, 48, 8, 128, 92544, 16384),
    "Yi-34B": ModelShape(7168, 56, 8, 128, 64000, 20480),
    "Qwen2.5-72B": ModelShape(8192, 64, 8, 128, 152064, 29568),
}
# Hidden size, and the experts.
MIXTURES = {
    "OLMoE-1B-7B": (2048, Mixture(64, 8, 1024)),
    "Qwen1.5-MoE-A2.7B": (2048, Mixture(60, 4, 1408)),
    "Phi-3.5-MoE": (4096, Mixture(16, 2, 6400)),
    "Qwen3-235B-A22B": (4096, Mixture(128, 8, 1536)),
    "Mixtral-8x22B": (6144, Mixture(8, 2, 16384)),
}
ROWS = (1, 3, 7, 16, 33, 65, 128)
