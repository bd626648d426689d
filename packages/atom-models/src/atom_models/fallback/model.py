"""`TransformersForCausalLM`: a decoder of transformers, as our engine runs one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from atom_models.fallback.admission import check_config, refuse
from atom_models.fallback.attention import LAYER, PagedAttention
from atom_models.fallback.planned import head_alone, plan_layers
from atom_models.fallback.skeleton import build_skeleton, dry_run, fill_buffers
from atom_models.fallback.tower import TransformersTower, check_pictures, tower_modules
from atom_models.fallback.weights import weight_groups
from atom_models.layers.loadable import expected_weights

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.vision.seen import SeenRows
    from atom_models.vision.spec import VisionSpec


class TransformersForCausalLM(nn.Module):
    """transformers' layers over our paged attention. T: tokens of all requests of a step; D: hidden size.

    Args:
        config: transformers' config, of a type whose causal model it has.
        context: how it is built; plain weights, on one rank.
        spec: which pictures it sees; None builds no tower, and passes its weights over.
        names: names of the checkpoint's tensors, which earlier releases may have spelled in another way.

    Attributes:
        vision_spec, vision: what hosts need to know of pictures, and the tower; None where it reads text alone.

    Raises:
        FallbackRefusedError: packed sequences would not get what they get one by one; the message says why.
    """

    def __init__(
        self, config: Any, context: BuildContext, spec: VisionSpec | None = None, names: Iterable[str] = ()
    ) -> None:
        super().__init__()
        check_config(config, context)
        self.config = config
        model = build_skeleton(config, context.dtype)
        calls = dry_run(model)
        if spec is not None:
            check_pictures(model.base_model, spec)
        _refuse_loose_tensors(model)
        for name, module in model.named_modules():
            if module in calls:
                setattr(module, LAYER, PagedAttention(calls[module], context, prefix=f"{name}.attn"))
        plan_layers(model, context.platform, context.max_model_len)
        fill_buffers(model, context.device)
        groups, of_tower = weight_groups(model, context, names), tower_modules(model)
        self.weights = nn.ModuleList(one for one in groups if not one.holders <= of_tower)
        groups = [one for one in groups if one.holders <= of_tower]
        self.ignored_prefixes = () if spec else tuple(name for one in groups for name in expected_weights(one))
        self.model = model.base_model
        self.vision_spec = spec
        self.vision = None if spec is None else TransformersTower(self.model, spec, groups, context)
        head = model.get_output_embeddings()
        # The causal model works logits out of what its decoder gives: in the place of that, our hidden states.
        setattr(model, model.base_model_prefix, _Given())
        self.causal = model
        self._head = head_alone(model, head) or self._whole_head
        self._check_head()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """int [T] -> [T, D], as the decoder takes them for `inputs_embeds`."""
        return self.model.get_input_embeddings()(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        *,
        seen: SeenRows | None = None,
    ) -> torch.Tensor:
        """Hidden states [T, D] after the last norm; positions are int64 [T], `seen` is of rows of pictures."""
        if seen is not None:
            embeds = self.embed_input_ids(cast("torch.Tensor", input_ids)) if inputs_embeds is None else inputs_embeds
            inputs_embeds = seen.embedded(embeds)
        ids = None if input_ids is None or inputs_embeds is not None else input_ids[None]
        embeds = None if inputs_embeds is None else inputs_embeds[None]
        out = self.model(input_ids=ids, inputs_embeds=embeds, position_ids=positions[None], use_cache=False)
        return out.last_hidden_state[0]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[n, D] of any rows -> float32 [n, vocabulary]."""
        return self._head(hidden_states).float()

    def _whole_head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.causal(inputs_embeds=hidden_states[None], use_cache=False).logits[0]

    def _check_head(self) -> None:
        width = self.model.get_input_embeddings().weight.shape[1]
        try:
            with torch.no_grad():
                self.compute_logits(torch.zeros(1, width, device="meta", dtype=self.causal.dtype))
        except Exception as error:
            reason = f"its head does not take hidden states alone ({type(error).__name__}: {error})"
            raise refuse(self.config.model_type, reason) from None


class _Given(nn.Module):
    """Stands for a decoder that has run: gives back what it is given."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        return _Outputs(inputs_embeds)


class _Outputs:
    """What a decoder gives, with nothing beside its hidden states, whatever else is asked of it."""

    def __init__(self, hidden_states: torch.Tensor) -> None:
        self.last_hidden_state = hidden_states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]


def _refuse_loose_tensors(model: Any) -> None:
    """A tensor that is neither parameter nor buffer would stay without values."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise refuse(model.config.model_type, f"{name}.{attribute} is a tensor outside its weights")
