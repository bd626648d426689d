"""A model of transformers without memory: parameters on the meta device, tables of angles where they run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_models.fallback.admission import GROWING_ROPES, FallbackRefusedError, refuse
from atom_models.fallback.attention import PAGED, Recorder, recording, register

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint
    from atom_models.fallback.attention import AttentionCall

# The name under which a dry run passes experts over.
_NO_EXPERTS = "atom_no_experts"
_DRY_TOKENS = 3


def read_config(checkpoint: Checkpoint) -> Any:
    """The config as transformers reads it, from its file alone."""
    return read_fields(checkpoint.model_type, json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8")))


def read_fields(model_type: str, fields: dict[str, Any]) -> Any:
    """As `read_config`, of fields."""
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[model_type].from_dict(fields)
    except Exception as error:
        raise refuse(model_type, f"transformers does not take the config: {_line(error)}") from None


def build_skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The causal model of `config`, over our attention, with nothing in its parameters; its tower keeps its own."""
    register()
    # A part of another name than the text's is a tower, which reads no cache.
    towers = {name: "sdpa" for name in config.sub_configs if name != "text_config"}
    attention = {"": PAGED, "text_config": PAGED, **towers} if is_multimodal(config) else PAGED
    try:
        with torch.device("meta"):
            model = auto_class(config).from_config(config, attn_implementation=attention, dtype=dtype)
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (PAGED,):
            why = "they have attention of their own in the place of transformers' attention interface"
            raise refuse(config.model_type, why) from None
        raise refuse(config.model_type, f"transformers does not build it: {_line(error)}") from None
    return model.eval()


def is_multimodal(config: Any) -> bool:
    """Whether the text model is one part of several."""
    return config.get_text_config() is not config


def auto_class(config: Any) -> Any:
    """The class of transformers that builds the causal model of `config`."""
    import transformers

    return transformers.AutoModelForImageTextToText if is_multimodal(config) else transformers.AutoModelForCausalLM


@torch.no_grad()
def fill_buffers(model: Any, device: torch.device | str) -> None:
    """Gives the buffers memory on `device`, and their values to those that follow from the config."""
    owners: dict[nn.Module, Any] = {}
    for module in model.modules():
        # Parts that are models know their own buffers.
        owners |= dict.fromkeys(module.modules(), module) if hasattr(module, "_init_weights") else {}
        computed = False
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.zeros_like(buffer, device=device)
                computed |= name in module._non_persistent_buffers_set
        if computed:
            owners[module]._init_weights(module)
    freeze_angles(model)


def freeze_angles(model: Any) -> list[tuple[Any, str]]:
    """Keeps rotations that grow at their first table, and gives those that did with the type that they had.

    `check_config` let none through whose sequences could become longer than that table is for.
    """
    found = [
        (module, module.rope_type) for module in model.modules() if getattr(module, "rope_type", None) in GROWING_ROPES
    ]
    for module, _ in found:
        module.rope_type = "default"
    return found


def dry_run(model: Any) -> dict[nn.Module, AttentionCall]:
    """Runs the decoder on the meta device, where nothing is computed: how each attention module calls attention.

    Raises:
        FallbackRefusedError: a layer calls attention not once, in a way that is unknown here, or cannot run so.
    """
    config = model.config
    recorder = Recorder(config.model_type)
    ids = torch.zeros(1, _DRY_TOKENS, dtype=torch.int64, device="meta")
    positions = torch.zeros(1, _DRY_TOKENS, dtype=torch.int64, device="meta")
    growing = freeze_angles(model)  # they would read positions, of which there are none
    try:
        with torch.no_grad(), recording(recorder), _without_experts(model):
            model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
    except FallbackRefusedError:
        raise
    except Exception as error:
        raise refuse(config.model_type, f"its layers do not run without data: {_line(error)}") from None
    finally:
        for module, rope_type in growing:
            module.rope_type = rope_type
    num_layers = config.get_text_config().num_hidden_layers
    if len(recorder.calls) != num_layers:
        raise refuse(
            config.model_type,
            f"{len(recorder.calls)} of {num_layers} layers call transformers' attention interface; the "
            "others would mix tokens of packed sequences",
        )
    return recorder.calls


@contextlib.contextmanager
def _without_experts(model: Any) -> Iterator[None]:
    """Experts give zeros: which of them run depends on data, and a dry run has none."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NO_EXPERTS, _no_experts)
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    before = [(config, getattr(config, "_experts_implementation_internal", None)) for config in configs.values()]
    for config, _ in before:
        config._experts_implementation_internal = _NO_EXPERTS
    try:
        yield
    finally:
        for config, implementation in before:
            config._experts_implementation_internal = implementation


def _no_experts(module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.zeros_like(hidden_states)


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
