"""Steps of models made of one kind of building block, in our engine and in `transformers`, in turns."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables, timing
from benchmarks.offline import Scenario
from benchmarks.sides import SideProcess

SIDES = ("atom", "transformers")
VOCAB_SIZE = 4096
BLOCKS = ("mixture of experts", "latent attention", "experts with biases and sinks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks blocks`."""
    parser.add_argument("--blocks", nargs="+", choices=BLOCKS, default=BLOCKS[:2], help="what the models are made of")
    parser.add_argument("--hidden", type=int, default=1024, help="hidden size")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=32, help="of which each token takes 4")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=256, help="tokens of each request before decoding starts")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="of the decode steps")
    parser.add_argument("--prefill", type=int, nargs="+", default=[512], help="prompt lengths of the prefill steps")
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine in each scenario")
    parser.add_argument("--steps", type=int, default=8, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    scenarios = [Scenario("decode", size, options.context) for size in options.batch_sizes]
    scenarios += [Scenario("prefill", 1, length) for length in options.prefill]
    results = []
    with tempfile.TemporaryDirectory(prefix="atom-blocks-") as folder:
        for block in options.blocks:
            path = write_model(block, Path(folder) / block.replace(" ", "-"), options)
            results += measure(block, path, scenarios, options=options)
    ratios = [result["times_faster_than"]["transformers"]["median"] for result in results]
    sizes = f"{options.layers} layers, hidden size {options.hidden}, {options.experts} experts top-4"
    settings = {"model": f"random models of {sizes}"} | documents.flags_of(
        options, "dtype", "threads", "turns", "steps"
    )
    others = [result["share_used_by_others"] for result in results]
    document = documents.document_of("blocks", options, settings, idle=idle, others=others, results=results) | {
        "median_ratio": round(statistics.median(ratios), 3),
        "lowest_ratio": min(ratios),
    }
    print(tables.blocks_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def measure(block: str, path: Path, scenarios: list[Scenario], *, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every scenario of one model, both sides in turns."""
    longest = max(scenario.context for scenario in scenarios) + (options.turns + 1) * (options.steps + 2) + 64
    settings = {
        "path": str(path),
        "dtype": options.dtype,
        "threads": options.threads,
        "max_model_len": longest,
        "max_num_seqs": max(scenario.batch_size for scenario in scenarios),
    }
    sides = [SideProcess(name, **settings) for name in SIDES]
    results = []
    try:
        for scenario in scenarios:
            print(f"measuring {block}, {scenario.name} ...", file=sys.stderr)
            for side in sides:
                scenario.prepare(side)
            interference = machine.Interference([side.pid for side in sides])
            taken = timing.interleave(
                {side.name: side.turn for side in sides}, turns=options.turns, steps=options.steps
            )
            results.append(
                {
                    "block": block,
                    "scenario": scenario.name,
                    "engines": {name: timings.summary() for name, timings in taken.items()},
                    "times_faster_than": {"transformers": timing.ratios(taken["atom"], taken["transformers"])},
                    "share_used_by_others": interference.share(),
                }
            )
    finally:
        for side in sides:
            side.close()
    return results


def write_model(block: str, folder: Path, options: argparse.Namespace) -> Path:
    """A random checkpoint, written by `transformers`, for both sides to read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model_type, fields = _config(block, options)
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Routers as sharp as trained ones, so that tokens part.
            if name.endswith(("gate.weight", "router.weight")):
                parameter.normal_(0, 0.1)
    model.save_pretrained(folder)
    return folder


def _config(block: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    hidden = options.hidden
    heads = max(4, hidden // 64)
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "max_position_embeddings": 8192,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": False,
    }
    if block == "mixture of experts":
        experts = {"num_experts": options.experts, "moe_intermediate_size": hidden // 2, "norm_topk_prob": True}
        return "qwen3_moe", fields | experts | {"head_dim": 64}
    if block == "experts with biases and sinks":
        experts = {"num_local_experts": options.experts, "intermediate_size": hidden // 2, "sliding_window": 128}
        return "gpt_oss", fields | experts | {"head_dim": 64}
    latent = {
        "num_key_value_heads": heads,
        "q_lora_rank": 3 * hidden // 8,
        "kv_lora_rank": hidden // 4,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        # Dense feed-forward layers in all of them: experts have a model of their own.
        "first_k_dense_replace": options.layers,
        "n_routed_experts": options.experts,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": hidden // 2,
    }
    return "deepseek_v3", fields | latent
