"""What every decoder-only model has around its layers, and the one loop over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from atom_models.build_context import BuildContext
from atom_models.checkpoint.prediction_layers import num_prediction_layers
from atom_models.config.reading import read_config
from atom_models.decoder.prediction_names import PredictionNames, behind_the_last_layer
from atom_models.groups import Stage
from atom_models.layers import LMHead, Residual, VocabularyEmbedding


class DecoderForCausalLM(nn.Module):
    """An embedding and layers as `model`, and a head over the vocabulary; models name their config and `make_model`.

    Layers of the checkpoint that predict further tokens are left unread: they make a draft model of their own. So is
    what other stages of a pipeline have.
    T: tokens of all requests of a step, one after the other; D: hidden size.

    Attributes:
        decoder_prefix, head_prefix: what the checkpoint calls the decoder and the head.
        passed_over: beginnings of names of weights that other models than this one are for.
    """

    config_class: type[Any]
    decoder_prefix: ClassVar[str] = "model"
    head_prefix: ClassVar[str] = "lm_head"
    passed_over: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__()
        self.config = read_config(self.config_class, config)
        num_layers, num_predicting = int(config["num_hidden_layers"]), num_prediction_layers(config)
        predicting = (self.names_prediction_layer(num_layers, index) for index in range(num_predicting))
        elsewhere = self._names_of_other_stages(num_layers, context.stage)
        self.ignored_prefixes = (*(names.own for names in predicting), *self.passed_over, *elsewhere)
        self.model = self.make_model(self.config, context)
        self.lm_head = None
        if context.stage.is_last:
            self.lm_head = LMHead(
                self.config.hidden_size,
                self.config.vocab_size,
                context,
                prefix=self.head_prefix,
                tied_to=self.model.embed_tokens if self.config.tie_word_embeddings else None,
            )

    def _names_of_other_stages(self, num_layers: int, stage: Stage) -> tuple[str, ...]:
        """Beginnings of the names of what is not built here."""
        if stage.count == 1:
            return ()
        layers = (f"layers.{layer_id}" for layer_id in range(num_layers) if layer_id not in stage.layers(num_layers))
        # What a stage has of these is its own, whatever is listed here.
        ends = (f"{self.decoder_prefix}.embed_tokens", f"{self.decoder_prefix}.norm", self.head_prefix)
        return tuple(f"{name}." for name in (*(f"{self.decoder_prefix}.{layer}" for layer in layers), *ends))

    @classmethod
    def names_prediction_layer(cls, num_layers: int, index: int) -> PredictionNames:
        """What the checkpoint calls prediction layer `index` behind `num_layers` layers; relatives have other names."""
        return behind_the_last_layer(cls.decoder_prefix, num_layers, index)

    def make_model(self, config: Any, context: BuildContext) -> Decoder:
        """The embedding, the layers and the last norm."""
        raise NotImplementedError

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """int [T] -> [T, D]."""
        return self.model.embed(input_ids)

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> Any:
        """Hidden states [T, D] after the last norm; positions are int64 [T] or [3, T].

        With `aux_hidden_states` in the build context: (hidden states, list of [T, D] after each of those layers).
        A stage that is not the last gives the residual behind its layers, which is the next one's `inputs_embeds`.
        """
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[n, D] of any rows -> float32 [n, vocabulary], or a rank's columns of it; the last stage alone has a head.

        A model that changes logits does it here, column by column, so that a rank does it to its own.
        """
        if self.lm_head is None:
            raise RuntimeError("the head is the last stage's")
        return self.lm_head(hidden_states)


class Decoder(nn.Module):
    """Token ids to hidden states: each layer adds to the residual, which begins as the embedding and is normed at last.

    Args:
        layers: called as ``layer(positions, residual) -> residual``, see `Residual`; those of its stage.
        norm: the last one, ``norm(residual) -> hidden_states``; only the last stage uses it.
        prefix: what the checkpoint calls it.
        embed_scale: factor on embeddings; None leaves them as they are.
    """

    def __init__(
        self,
        config: Any,
        context: BuildContext,
        *,
        layers: Iterable[nn.Module],
        norm: nn.Module,
        prefix: str = "model",
        embed_scale: float | None = None,
    ) -> None:
        super().__init__()
        stage, size = context.stage, config.hidden_size
        self.embed_tokens = None
        if stage.is_first or (stage.is_last and config.tie_word_embeddings):
            self.embed_tokens = VocabularyEmbedding(config.vocab_size, size, context, prefix=f"{prefix}.embed_tokens")
        self.layers = nn.ModuleList(layers)
        self.norm = norm if stage.is_last else None
        self._embed_scale, self.aux_layer_ids = embed_scale, context.aux_hidden_states
        outside = [layer_id for layer_id in self.aux_layer_ids if not 0 <= layer_id < len(self.layers)]
        if outside:
            raise ValueError(
                f"aux_hidden_states asks for the output of layer {outside[0]}; the model has layers 0 to "
                f"{len(self.layers) - 1}"
            )

    def embed(self, input_ids: torch.Tensor | None) -> torch.Tensor:
        if self.embed_tokens is None:
            raise RuntimeError("the embedding is the first stage's")
        embeds = self.embed_tokens(input_ids)
        return embeds if self._embed_scale is None else embeds * self._embed_scale

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> Any:
        residual = Residual(self.embed(input_ids) if inputs_embeds is None else inputs_embeds)
        return self.end(*self.run_layers(positions, residual))

    def end(self, residual: Residual, aux: list[Residual]) -> Any:
        """What `forward` returns, of what `run_layers` gave."""
        hidden_states = residual.tensor() if self.norm is None else self.norm(residual)
        return (hidden_states, [each.tensor() for each in aux]) if self.aux_layer_ids else hidden_states

    def run_layers(self, positions: torch.Tensor, residual: Residual) -> tuple[Residual, list[Residual]]:
        """The residual behind the last layer, and behind each of `aux_layer_ids`."""
        aux = []
        for layer_id, layer in enumerate(self.layers):
            residual = layer(positions, residual)
            if layer_id in self.aux_layer_ids:
                aux.append(residual)
        return residual, aux
