"""Our models as vLLM wants models: thin wrappers that build, load and run them.

For each architecture vLLM's registry gets a class that is made here on demand: a subclass of vLLM's own class, so that
vLLM reads that one's features from it. Making an instance gives our wrapper, or, for what our models do not have,
vLLM's own model, just as if we were not here.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from atom_kernels.platform import detect_platform
from atom_models import BuildContext, build_model, load_dummy_weights, load_named_weights
from atom_models.architectures.registry import has_experts, keeps_states
from atom_models.layers.shared_vocabulary import SharedVocabulary
from atom_models.quantization import choose_quantization
from atom_models.weights import check_headers, choose_names
from atom_vllm import compat, features, pictures
from atom_vllm.engine_settings import checkpoint_of, translate
from atom_vllm.mixers.mixer_host import connect_layers, mixer_host_factory
from atom_vllm.models import load_order
from atom_vllm.models.architectures import overridden, wrapper_name
from atom_vllm.models.collectives import groups_of
from atom_vllm.models.compiled import compiled
from atom_vllm.models.kept_states import CopiesStates, planned_dtypes
from atom_vllm.stored_weights import headers_of

logger = logging.getLogger("vllm.atom")


class ATOMModelBase(CopiesStates, nn.Module):
    """A model of `atom_models` behind vLLM's interface for text generation.

    Attributes:
        settings: vLLM's, as they were translated.
    """

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        groups = groups_of(vllm_config)
        self.settings = translate(vllm_config)
        self.vllm_config = vllm_config
        self.config = vllm_config.model_config.hf_config
        self._checkpoint = checkpoint_of(vllm_config)
        headers = headers_of(vllm_config)
        context = BuildContext(
            platform=detect_platform(),
            dtype=vllm_config.model_config.dtype,
            device=vllm_config.device_config.device,
            groups=groups,
            quantization=choose_quantization(self._checkpoint.config, headers=headers),
            mixer_host=mixer_host_factory(vllm_config),
            block_size=self.settings.block_size * groups.context.size,  # vLLM counts what a rank keeps
            max_model_len=self.settings.max_model_len,
            expert_exchange="gather",  # its shapes follow from numbers on the host, so that vLLM may capture steps
            language_model_only=self.is_text_alone(vllm_config),
        )
        self.model: Any = build_model(self._checkpoint, context)
        self._vocabulary = SharedVocabulary(context.collectives, self.model.config.vocab_size)
        if headers is not None:
            choose_names(self.model, headers.tensors)
            check_headers(self.model, headers)
        connect_layers(self.model, vllm_config)
        self._decode = compiled(self.model, vllm_config)
        if vllm_config.load_config.load_format == "dummy":
            load_dummy_weights(self.model, self._checkpoint, device=vllm_config.device_config.device)
            load_order.mark(vllm_config)

    @staticmethod
    def is_text_alone(vllm_config: Any) -> bool:
        """Whether no prompt has pictures: then no tower is built."""
        return True

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        return self._decode(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._vocabulary.whole(self.model.compute_logits(hidden_states))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load from the tensors that vLLM gives, wherever they come from.

        Raises:
            CheckpointError: they do not fit the model; it names the first ones.
        """
        loaded = load_named_weights(self.model, load_order.note_order(weights), self._checkpoint.path)
        load_order.mark(self.vllm_config)
        return loaded


class ATOMForCausalLM(ATOMModelBase):
    """Dense models."""


class ATOMMoEForCausalLM(ATOMModelBase):
    """Mixtures of experts."""


def our_class(architecture: str) -> type[ATOMModelBase]:
    """What an architecture is made by where ours can serve."""
    if architecture in pictures.ARCHITECTURES:
        from atom_vllm.models.seeing import ATOMForConditionalGeneration

        return ATOMForConditionalGeneration
    return ATOMMoEForCausalLM if has_experts(architecture) else ATOMForCausalLM


@functools.cache
def _make_class(architecture: str) -> type:
    module, name = compat.own_class(architecture) or ("", "")
    own: Any = getattr(importlib.import_module(module), name)
    ours = our_class(architecture)

    def choose(cls: Any, *, vllm_config: Any, prefix: str = "", **keywords: Any) -> Any:
        reason = features.why_not_ours(vllm_config)
        if reason is not None:
            logger.info("atom-vllm: %s is vLLM's own, because %s", architecture, reason)
            return own.__new__(cls)
        logger.info("Register model %s to vLLM with %s:%s", architecture, ours.__module__, ours.__name__)
        return ours(vllm_config=vllm_config, prefix=prefix)

    members: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"`{name}` or ours, whichever can serve.",
        "__new__": choose,
        "supports_mm_device_do_normalize": False,  # our towers take the pixels that vLLM's processors have normed
    }
    if keeps_states(architecture):
        members["get_mamba_state_dtype_from_config"] = planned_dtypes(own)
    return type(wrapper_name(architecture), (own,), members)


def __getattr__(name: str) -> type:
    found = next((entry for entry in overridden() if wrapper_name(entry) == name), None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _make_class(found)
