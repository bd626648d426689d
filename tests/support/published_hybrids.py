"""Published checkpoints of sparse attention and of delta nets: every tensor of their first layers, and the towers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from published_catalog import PLAIN, Linears, Others, packed
from published_checkpoints import PublishedCheckpoint
from published_configs import FOLDER

_BF16 = "BF16"


def _mlp(prefix: str, hidden: int, size: int, names: tuple[str, str] = ("{gate,up}_proj", "down_proj")) -> Linears:
    return {f"{prefix}.{names[0]}": (size, hidden, PLAIN), f"{prefix}.{names[1]}": (hidden, size, PLAIN)}


def _around(prefix: str, layers: str, hidden: int, vocab: int, head: str = "lm_head") -> Others:
    """What every decoder has around its layers."""
    return {
        f"{prefix}.layers.{layers}.{{input,post_attention}}_layernorm.weight": (_BF16, str(hidden)),
        f"{prefix}.norm.weight": (_BF16, str(hidden)),
        f"{{{prefix}.embed_tokens,{head}}}.weight": (_BF16, f"{vocab} {hidden}"),
    }


def _latents(
    prefix: str, hidden: int, heads: int, dims: tuple[int, int, int], q_rank: int | None
) -> tuple[Linears, Others]:
    """Latent attention; `dims` of a head are those without rotation, with rotation, and of a value."""
    nope, rope, value = dims
    query = {"q_proj": (heads * (nope + rope), hidden)}
    if q_rank:
        query = {"q_a_proj": (q_rank, hidden), "q_b_proj": (heads * (nope + rope), q_rank)}
    sizes = query | {
        "kv_a_proj_with_mqa": (512 + rope, hidden),
        "kv_b_proj": (heads * (nope + value), 512),
        "o_proj": (hidden, heads * value),
    }
    norms = {"kv_a_layernorm": 512} | ({"q_a_layernorm": q_rank} if q_rank else {})
    return (
        {f"{prefix}.{name}": (*size, PLAIN) for name, size in sizes.items()},
        {f"{prefix}.{name}.weight": (_BF16, str(size)) for name, size in norms.items()},
    )


def _of_config(
    config: str, layers: int, linears: Linears, others: Others, *passed_over: str, **changes: Any
) -> PublishedCheckpoint:
    """So many layers of it. Fields of the text stand where the config has them."""
    fields = json.loads((FOLDER / f"{config}.json").read_text())
    changes = {"num_hidden_layers": layers, **changes}
    if text := fields.get("text_config"):
        kinds = {"layer_types": text["layer_types"][:layers]} if "layer_types" in text else {}
        seeing = fields["vision_config"]
        if "out_hidden_size" in seeing and "hidden_size" in changes:
            seeing = seeing | {"out_hidden_size": changes["hidden_size"]}
        changes = {"text_config": text | kinds | changes, "vision_config": seeing}
    return PublishedCheckpoint(
        config, linears, others, quantization={}, formats=frozenset(), changes=changes, passed_over=passed_over
    )


def _glm_5(layers: int, indexed: str, **changes: Any) -> PublishedCheckpoint:
    """Layer `layers` guesses further tokens; of the others those of `indexed` have an index."""
    of_all, indexer = f"model.layers.{{0..{layers - 1}}}", f"model.layers.{indexed}.self_attn.indexer"
    mixture = f"model.layers.{{3..{layers - 1}}}.mlp"
    linears, norms = _latents(f"{of_all}.self_attn", 6144, 64, (192, 64, 256), 2048)
    index = {"wq_b": (32 * 128, 2048, PLAIN), "wk": (128, 6144, PLAIN), "weights_proj": (32, 6144, PLAIN)}
    guessing = {f"model.layers.{layers}.{{enorm,hnorm}}.weight": (_BF16, "6144")}
    return _of_config(
        "glm-5",
        layers,
        linears
        | {f"{indexer}.{name}": one for name, one in index.items()}
        | _mlp("model.layers.{0..2}.mlp", 6144, 12288)
        | _mlp(f"{mixture}.{{shared_experts,experts.{{0..255}}}}", 6144, 2048),
        norms
        | guessing
        | _around("model", f"{{0..{layers - 1}}}", 6144, 154880)
        | {
            f"{indexer}.k_norm.{{weight,bias}}": (_BF16, "128"),
            f"{mixture}.gate.weight": (_BF16, "256 6144"),
            f"{mixture}.gate.e_score_correction_bias": ("F32", "256"),
        },
        f"model.layers.{layers}.",
        **changes,
    )


def _attention_with_gates(prefix: str, hidden: int, heads: int, kv_heads: int) -> tuple[Linears, Others]:
    """A query of 256 and a gate of as many for each head."""
    linears = {
        f"{prefix}.q_proj": (heads * 512, hidden, PLAIN),
        f"{prefix}.{{k,v}}_proj": (kv_heads * 256, hidden, PLAIN),
        f"{prefix}.o_proj": (hidden, heads * 256, PLAIN),
    }
    return linears, {f"{prefix}.{{q,k}}_norm.weight": (_BF16, "256")}


def _delta_net(prefix: str, hidden: int, heads: int, inputs: Mapping[str, int]) -> tuple[Linears, Others]:
    """16 heads of keys, and `heads` of values; `inputs` are the rows of each projection of the input."""
    linears = {f"{prefix}.{name}": (rows, hidden, PLAIN) for name, rows in inputs.items()}
    others = {
        f"{prefix}.conv1d.weight": (_BF16, f"{(32 + heads) * 128} 1 4"),
        f"{prefix}.{{A_log,dt_bias}}": (_BF16, str(heads)),
        f"{prefix}.norm.weight": (_BF16, "128"),
    }
    return linears | {f"{prefix}.out_proj": (hidden, heads * 128, PLAIN)}, others


def _shared_expert(prefix: str, hidden: int, size: int, experts: int) -> tuple[Linears, Others]:
    gates = {f"{prefix}.gate.weight": (_BF16, f"{experts} {hidden}")}
    gates |= {f"{prefix}.shared_expert_gate.weight": (_BF16, f"1 {hidden}")}
    return _mlp(f"{prefix}.shared_expert", hidden, size), gates


def _qwen3_next() -> PublishedCheckpoint:
    """Rows of `in_proj_qkvz` are grouped by heads of keys; experts come one by one."""
    of_all = "model.layers.{0..4}"
    linear, linear_norms = _delta_net(
        "model.layers.{0,1,2,4}.linear_attn", 2048, 32, {"in_proj_qkvz": 2 * (16 + 32) * 128, "in_proj_ba": 64}
    )
    full, full_norms = _attention_with_gates("model.layers.3.self_attn", 2048, 16, 2)
    shared, gates = _shared_expert(f"{of_all}.mlp", 2048, 512, 512)
    guessing = {"mtp.fc.weight": (_BF16, "2048 4096"), "mtp.norm.weight": (_BF16, "2048")}
    return _of_config(
        "qwen3-next-80b-a3b",
        5,
        linear | full | shared | _mlp(f"{of_all}.mlp.experts.{{0..511}}", 2048, 512),
        linear_norms | full_norms | gates | guessing | _around("model", "{0..4}", 2048, 151936),
        "mtp.",
    )


def _qwen3_5(
    config: str, hidden: int, heads: tuple[int, int, int], experts: tuple[int, int] | None, **changes: Any
) -> PublishedCheckpoint:
    """The first five layers, and the whole tower.

    Args:
        heads: how many of queries, of keys in attention, and of values in delta nets.
        experts: how many, and their size; None is an MLP of 17408.
    """
    model, (queries, keys, values) = "model.language_model", heads
    of_all = f"{model}.layers.{{0..4}}.mlp"
    inputs = {"in_proj_qkv": (32 + values) * 128, "in_proj_z": values * 128, "in_proj_{a,b}": values}
    linear, linear_norms = _delta_net(f"{model}.layers.{{0,1,2,4}}.linear_attn", hidden, values, inputs)
    full, full_norms = _attention_with_gates(f"{model}.layers.3.self_attn", hidden, queries, keys)
    linears, others = linear | full, linear_norms | full_norms
    if experts is None:
        linears |= _mlp(of_all, hidden, 17408)
    else:
        count, size = experts
        shared, gates = _shared_expert(of_all, hidden, size, count)
        linears, others = linears | shared, others | gates
        others[f"{of_all}.experts.gate_up_proj"] = (_BF16, f"{count} {2 * size} {hidden}")
        others[f"{of_all}.experts.down_proj"] = (_BF16, f"{count} {hidden} {size}")
    return _of_config(
        config,
        5,
        linears,
        others
        | _tower(hidden)
        | {"mtp.fc.weight": (_BF16, f"{hidden} {2 * hidden}"), "mtp.norm.weight": (_BF16, str(hidden))}
        | _around(model, "{0..4}", hidden, 248320),
        "mtp.",
        **changes,
    )


def _tower(hidden: int) -> Others:
    tower, block = "model.visual", "model.visual.blocks.{0..26}"
    sizes = {
        f"{block}.attn.qkv": (3456, 1152),
        f"{block}.attn.proj": (1152, 1152),
        f"{block}.mlp.linear_fc1": (4304, 1152),
        f"{block}.mlp.linear_fc2": (1152, 4304),
        f"{tower}.merger.linear_fc1": (4608, 4608),
        f"{tower}.merger.linear_fc2": (hidden, 4608),
    }
    others = {f"{name}.weight": (_BF16, f"{rows} {columns}") for name, (rows, columns) in sizes.items()}
    others |= {f"{name}.bias": (_BF16, str(rows)) for name, (rows, _) in sizes.items()}
    return others | {
        f"{{{block}.norm{{1,2}},{tower}.merger.norm}}.{{weight,bias}}": (_BF16, "1152"),
        f"{tower}.patch_embed.proj.weight": (_BF16, "1152 3 2 16 16"),
        f"{tower}.patch_embed.proj.bias": (_BF16, "1152"),
        f"{tower}.pos_embed.weight": (_BF16, "2304 1152"),
    }


def _moonvit(size: int, inner: int, embedding: int) -> dict[str, tuple[str, str]]:
    """The whole tower of Kimi-K2.5, and the projector behind it, which takes squares of four patches."""
    blocks, merged = "vision_tower.encoder.blocks.{0..26}", 4 * size
    products = {
        f"{blocks}.wqkv": (3 * size, size), f"{blocks}.wo": (size, size),
        f"{blocks}.mlp.fc0": (inner, size), f"{blocks}.mlp.fc1": (size, inner),
        "mm_projector.proj.0": (merged, merged), "mm_projector.proj.2": (embedding, merged),
    }  # fmt: skip
    norms = (f"{blocks}.{{norm0,norm1}}", "vision_tower.encoder.final_layernorm", "mm_projector.pre_norm")
    return {
        **{f"{name}.weight": (_BF16, f"{rows} {columns}") for name, (rows, columns) in products.items()},
        **{f"{name}.bias": (_BF16, f"{rows}") for name, (rows, _) in products.items()},
        **{f"{name}.{{weight,bias}}": (_BF16, f"{size}") for name in norms},
        "vision_tower.patch_embed.proj.weight": (_BF16, f"{size} 3 14 14"),
        "vision_tower.patch_embed.proj.bias": (_BF16, f"{size}"),
        "vision_tower.patch_embed.pos_emb.weight": (_BF16, f"64 64 {size}"),
    }


def _kimi_k2_5() -> PublishedCheckpoint:
    """Routed experts in int4, all else plain, and the whole tower."""
    model = "language_model.model"
    attention, norms = _latents(f"{model}.layers.{{0..2}}.self_attn", 7168, 64, (128, 64, 128), 1536)
    mixture, int4 = f"{model}.layers.{{1,2}}.mlp", packed(32, "I32")
    experts: Linears = {f"{mixture}.experts.{{0..383}}.{{gate,up}}_proj": (2048, 7168, int4)}
    experts |= {f"{mixture}.experts.{{0..383}}.down_proj": (7168, 2048, int4)}
    return _of_config(
        "kimi-k2.5",
        3,
        attention
        | experts
        | _mlp(f"{model}.layers.0.mlp", 7168, 18432)
        | _mlp(f"{mixture}.shared_experts", 7168, 2048),
        norms
        | _around(model, "{0..2}", 7168, 163840, "language_model.lm_head")
        | {
            f"{mixture}.gate.weight": (_BF16, "384 7168"),
            f"{mixture}.gate.e_score_correction_bias": ("F32", "384"),
            **_moonvit(1152, 4304, 7168),
        },
    )


def _kimi_linear() -> PublishedCheckpoint:
    delta, mixture = "model.layers.{0,1,2,4}.self_attn", "model.layers.{1..4}.block_sparse_moe"
    sizes = {"{q,k,v}_proj": (4096, 2304), "o_proj": (2304, 4096), "b_proj": (32, 2304)}
    sizes |= {"{f,g}_a_proj": (128, 2304), "{f,g}_b_proj": (4096, 128)}
    full, full_norms = _latents("model.layers.3.self_attn", 2304, 32, (128, 64, 128), None)
    return _of_config(
        "kimi-linear-48b-a3b",
        5,
        full
        | {f"{delta}.{name}": (*size, PLAIN) for name, size in sizes.items()}
        | _mlp("model.layers.0.mlp", 2304, 9216)
        | _mlp(f"{mixture}.shared_experts", 2304, 1024)
        | _mlp(f"{mixture}.experts.{{0..255}}", 2304, 1024, ("w{1,3}", "w2")),
        full_norms
        | _around("model", "{0..4}", 2304, 163840)
        | {
            f"{delta}.{{q,k,v}}_conv1d.weight": (_BF16, "4096 1 4"),
            f"{delta}.A_log": ("F32", "1 1 32 1"),
            f"{delta}.dt_bias": ("F32", "4096"),
            f"{delta}.o_norm.weight": (_BF16, "128"),
            f"{mixture}.gate.weight": (_BF16, "256 2304"),
            f"{mixture}.gate.e_score_correction_bias": ("F32", "256"),
        },
        linear_attn_config={
            **json.loads((FOLDER / "kimi-linear-48b-a3b.json").read_text())["linear_attn_config"],
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3, 5],
        },
    )


_OF_35B = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32}
_OF_35B |= {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
_OF_35B |= {"shared_expert_intermediate_size": 512}

HYBRIDS: Mapping[str, PublishedCheckpoint] = {
    "zai-org/GLM-5": _glm_5(5, "{0..4}"),
    "zai-org/GLM-5.2": _glm_5(
        8,
        "{0,1,2,6}",
        index_topk_freq=4,
        index_skip_topk_offset=3,
        indexer_types=[*["full"] * 3, *["shared"] * 3, "full", "shared"],
        index_share_for_mtp_iteration=True,
        rope_parameters={"rope_theta": 8000000, "rope_type": "default"},
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _qwen3_next(),
    "Qwen/Qwen3.5-397B-A17B": _qwen3_5("qwen3.5-397b-a17b", 4096, (32, 2, 64), (512, 1024)),
    "Qwen/Qwen3.5-27B": _qwen3_5("qwen3.5-27b", 5120, (24, 4, 48), None),
    "Qwen/Qwen3.6-35B-A3B": _qwen3_5("qwen3.5-397b-a17b", 2048, (16, 2, 32), (256, 512), **_OF_35B),
    "moonshotai/Kimi-K2.5": _kimi_k2_5(),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": _kimi_linear(),
}
