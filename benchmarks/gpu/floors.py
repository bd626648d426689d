"""The least time that a GPU can take: bytes at the rate of a copy, operations at the rate of a large product.

Each operation takes the longer of the two. Bytes are every weight that the step touches and every key and value that it
must see, once each; activations stay in the caches. Experts that a batch touches are those of uniform routing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.ceilings import Ceilings

BYTES = 2  # of a plain weight, a key or a value in bfloat16
# Bytes of a quantized weight with its scales; and how many products a GPU computes in the time of one.
WEIGHT_BYTES = {"fp8": 1.0, "compressed-tensors": 0.5 + 4 / 128}
# Bytes of an expert's weight, by methods that quantize nothing else: a byte of scale for 32.
EXPERT_BYTES = {"mxfp4": 0.5 + 1 / 32}
PRODUCTS = {"fp8": 2.0}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names of their number in configs
LOGIT_BYTES = 8  # a float32 logit is written and read
STATE_BYTES = 4  # of a number of a state
STATE_OPERATIONS = 7  # of a number of a state and a token, which decays, is corrected and is read


@dataclass(frozen=True)
class Shape:
    """What of a config decides how much a step must do. Parameters are numbers of weights."""

    num_layers: int
    num_heads: int
    attention: int  # parameters of all layers' attention, delta nets included
    key_size: int  # multiply-adds of a head for a key in a decode
    prompt_key_size: int  # and in a prompt, where latent attention is multiplied out to heads
    cached: int  # numbers of a token in a layer's cache
    dense: int  # parameters of all dense MLPs and shared experts
    expert: int  # parameters of one routed expert
    num_mixtures: int
    num_experts: int
    top_k: int
    head: int  # parameters of the head over the vocabulary
    vocab_size: int
    num_windows: int  # layers that see `window` tokens
    window: int
    num_states: int  # layers with a delta net, which see no keys
    state: int  # float32 numbers that such a layer remembers of a request
    weight_bytes: float = BYTES  # of weights but the head's and routed experts'
    expert_bytes: float = BYTES
    products: float = 1.0

    def visible(self, context: float) -> float:
        """Keys that a query after `context` tokens sees in all layers together."""
        return self.num_full * context + self.num_windows * min(context, self.window)

    @property
    def num_full(self) -> int:
        """Layers that see all keys."""
        return self.num_layers - self.num_windows - self.num_states


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape of a model, from its Hugging Face config."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    num_experts = next((config[name] for name in EXPERTS if name in config), 0)
    num_mixtures = layers - config.get("first_k_dense_replace", 0) if num_experts else 0
    expert = 3 * hidden * config.get("moe_intermediate_size", config["intermediate_size"])
    windows = config.get("layer_types", []).count("sliding_attention")
    dense = (layers - num_mixtures) * 3 * hidden * config["intermediate_size"]
    dense += num_mixtures * 3 * hidden * config.get("shared_expert_intermediate_size", 0)
    method = config.get("quantization_config", {}).get("quant_method")
    interval = config.get("full_attention_interval", 1)
    num_states = layers - layers // interval
    attention, key_size, prompt_key_size, cached = (_latent if "kv_lora_rank" in config else _grouped)(config)
    return Shape(
        num_layers=layers,
        num_heads=heads,
        attention=(layers - num_states) * attention + num_states * (_delta_net(config) if num_states else 0),
        key_size=key_size,
        prompt_key_size=prompt_key_size,
        cached=cached,
        dense=dense + num_mixtures * config.get("n_shared_experts", 0) * expert,
        expert=expert,
        num_mixtures=num_mixtures,
        num_experts=num_experts,
        top_k=config.get("num_experts_per_tok", 0),
        head=hidden * config["vocab_size"],
        vocab_size=config["vocab_size"],
        num_windows=windows,
        window=config.get("sliding_window") or 0,
        num_states=num_states,
        state=_state(config) if num_states else 0,
        weight_bytes=WEIGHT_BYTES.get(method, BYTES),
        expert_bytes=EXPERT_BYTES.get(method, WEIGHT_BYTES.get(method, BYTES)),
        products=PRODUCTS.get(method, 1.0),
    )


def _grouped(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    heads, head_dim, kv_heads = (config[key] for key in ("num_attention_heads", "head_dim", "num_key_value_heads"))
    # Beside delta nets attention has a gate for each element of its outputs.
    gates = heads if "linear_num_key_heads" in config else 0
    parameters = config["hidden_size"] * head_dim * (2 * heads + 2 * kv_heads + gates)
    return parameters, 2 * head_dim, 2 * head_dim, 2 * kv_heads * head_dim


def _delta_net(config: Mapping[str, Any]) -> int:
    """Parameters of a delta net: queries, keys, values, gates, decays and betas, and the output."""
    heads = config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return config["hidden_size"] * (2 * keys + 3 * heads * config["linear_value_head_dim"] + 2 * heads)


def _state(config: Mapping[str, Any]) -> int:
    return config["linear_num_value_heads"] * config["linear_key_head_dim"] * config["linear_value_head_dim"]


def _latent(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank = config.get("q_lora_rank")
    queries = rank * (hidden + heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
    parameters = queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    return parameters, 2 * latent + rope, nope + rope + value, latent + rope


def decode_seconds(shape: Shape, batch_size: float, context: float, rates: Ceilings) -> float:
    """One token for each of `batch_size` requests that have `context` tokens."""
    seen = batch_size * shape.visible(context)
    seconds = _linears(shape, batch_size, batch_size, rates) + _seconds(
        rates, BYTES * seen * shape.cached, 2 * seen * shape.num_heads * shape.key_size
    )
    # Each state is read and written.
    states = batch_size * shape.num_states * shape.state
    return seconds + _seconds(rates, 2 * STATE_BYTES * states, STATE_OPERATIONS * states)


def prefill_seconds(shape: Shape, num_tokens: int, rates: Ceilings) -> float:
    """A prompt, and one token after it."""
    window = min(num_tokens, shape.window)
    full = shape.num_full * num_tokens**2 / 2
    pairs = full + shape.num_windows * (num_tokens * window - window**2 / 2)
    products = 2 * pairs * shape.num_heads * shape.prompt_key_size
    products += num_tokens * shape.num_states * STATE_OPERATIONS * shape.state
    return _linears(shape, num_tokens, 1, rates) + _seconds(rates, 0, products)


def offline_seconds(shape: Shape, prompts: list[int], outputs: list[int], rates: Ceilings) -> float:
    """All prompts one after the other, then decodes of all that are left."""
    seconds = sum(prefill_seconds(shape, length, rates) for length in prompts)
    for step in range(1, max(outputs)):
        live = [prompt + step for prompt, count in zip(prompts, outputs, strict=True) if count > step]
        seconds += decode_seconds(shape, len(live), sum(live) / len(live), rates)
    return seconds


def _linears(shape: Shape, num_tokens: float, num_logits: float, rates: Ceilings) -> float:
    """Everything but attention over keys, for so many tokens of which so many need logits."""

    def part(weights: float, products: float, weight_bytes: float = shape.weight_bytes) -> float:
        return _seconds(rates, weight_bytes * weights, 2 * products / shape.products)

    logits = BYTES * shape.head + LOGIT_BYTES * num_logits * shape.vocab_size
    seconds = part(shape.attention, num_tokens * shape.attention) + part(shape.dense, num_tokens * shape.dense)
    seconds += _seconds(rates, logits, 2 * num_logits * shape.head)
    if shape.num_mixtures:
        touched = shape.num_experts * (1 - (1 - shape.top_k / shape.num_experts) ** num_tokens)
        weights = shape.num_mixtures * shape.expert
        seconds += part(touched * weights, num_tokens * shape.top_k * weights, shape.expert_bytes)
    return seconds


def _seconds(rates: Ceilings, num_bytes: float, operations: float) -> float:
    return max(num_bytes / rates.copy_bytes_per_second, operations / rates.operations_per_second)
