"""Architectures by the name that checkpoints give them. Torch-free until one is loaded."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.spec import PictureDefaults
from atom_models.vision.videos import KIMI, QWEN2, QWEN3

if TYPE_CHECKING:
    from torch import nn

# What architectures do beyond Llama, in the words that lists show.

# q, k and v have biases (with a field attention_bias: if it is true), the output projection has none.
QKV_BIAS = "QKV bias"
# Each head of q and k is normed; WIDE: all heads of one as a whole.
QK_NORM = "QK norm"
WIDE_QK_NORM = "QK norm over all heads"
# Layers may see a window of tokens only: which, the config says.
SLIDING_WINDOW = "sliding window"
SINKS = "attention sinks"
# Norms before and after both halves of a layer.
FOUR_NORMS = "norms around each half"
# Norms subtract the mean, and have biases.
LAYER_NORM = "layer norm"
# MLPs have two linears with an activation between them.
UNGATED_MLP = "MLP without a gate"
# Keys and values are cached as one latent vector.
LATENT_ATTENTION = "latent attention"
# An index chooses the latents that a token attends to.
SPARSE_ATTENTION = "sparse attention"
MIXTURE_OF_EXPERTS = "mixture of experts"
# Routers have a weight for each expert that chooses and does not weigh.
CORRECTION_BIAS = "biased choice of experts"
GROUPED_ROUTING = "grouped routing"
SHARED_EXPERTS = "shared experts"
# Biases in the router and in each expert.
EXPERT_BIAS = "expert biases"
# Layers that keep one state a request, whatever its length, in the place of keys and values.
GATED_DELTA_NET = "gated delta net"
# Layers for multi-token prediction may be in the checkpoint: they draft where that is asked for.
PREDICTION_LAYERS = "prediction layers"

# It reads texts in both directions and writes none: for vectors, scores and labels.
ENCODER = "encoder"
# A head gives a score for each of the labels that the config names.
LABELS = "labels"
# Checkpoints may come with an adapter for each task that they were trained for.
TASKS = "tasks"
# Prompts may hold pictures.
IMAGES = "images"
# Two encoders, of texts and of pictures, give vectors of one space: each prompt is a text, or a picture.
TWO_TOWERS = "two towers"
# Texts are filled up to the longest.
PADDED = "padded texts"


@dataclass(frozen=True)
class Architecture:
    """An architecture before anything of it is imported.

    Attributes:
        module: a module of this package, which defines a class of the architecture's name.
        models: published models that are of it, for lists.
        features: the words above, for lists.
        published_as: number format of the weights that their publishers give out, as `quantization_method` spells it.
        num_undeclared: prediction layers of published checkpoints whose configs say nothing of them.
        pictures: how pictures are prepared where no file says so; None where it takes none.
    """

    module: str
    models: str
    features: tuple[str, ...] = ()
    published_as: str = "bfloat16"
    num_undeclared: int = 0
    pictures: PictureDefaults | None = None

    @property
    def keeps_states(self) -> bool:
        """Whether some of its layers keep one state a request."""
        return GATED_DELTA_NET in self.features

    @property
    def is_encoder(self) -> bool:
        """Whether it reads texts in both directions, so that a step needs the whole of each."""
        return ENCODER in self.features

    @property
    def has_two_towers(self) -> bool:
        """Whether texts and pictures go through encoders of their own, and come out as vectors."""
        return TWO_TOWERS in self.features

    @property
    def pads_texts(self) -> bool:
        """Whether texts are filled up to the longest."""
        return PADDED in self.features

    @property
    def has_labels(self) -> bool:
        """Whether it ends in scores of labels."""
        return LABELS in self.features

    @property
    def has_tasks(self) -> bool:
        """Whether its checkpoints may come with adapters for tasks."""
        return TASKS in self.features

    @property
    def has_experts(self) -> bool:
        """Whether some of its layers are mixtures of experts."""
        return MIXTURE_OF_EXPERTS in self.features

    @property
    def has_sparse_attention(self) -> bool:
        """Whether an index of its layers chooses what they attend to."""
        return SPARSE_ATTENTION in self.features

    @property
    def has_prediction_layers(self) -> bool:
        """Whether the prediction layers of its checkpoints can draft."""
        return PREDICTION_LAYERS in self.features


_QWEN_HYBRID = (GATED_DELTA_NET, QK_NORM, PREDICTION_LAYERS)
_QWEN_EXPERTS = (MIXTURE_OF_EXPERTS, SHARED_EXPERTS)
_DEEPSEEK_V3_EXPERTS = (MIXTURE_OF_EXPERTS, GROUPED_ROUTING, CORRECTION_BIAS, SHARED_EXPERTS)

_HALVES = (0.5, 0.5, 0.5)
# https://github.com/openai/CLIP
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_QWEN3_PICTURES = PictureDefaults(65_536, 16_777_216, _HALVES, _HALVES, video=QWEN3)
_QWEN2_PICTURES = PictureDefaults(3_136, 12_845_056, _CLIP_MEAN, _CLIP_STD, video=QWEN2)
_CLIP_PICTURES = PictureDefaults(50_176, 50_176, _CLIP_MEAN, _CLIP_STD, max_side=224)
_SIGLIP_BASE_PICTURES = PictureDefaults(50_176, 50_176, _HALVES, _HALVES, max_side=224)
_PIXTRAL_PICTURES = PictureDefaults(784, 1_048_576, _CLIP_MEAN, _CLIP_STD, max_side=1024)
_SIGLIP_PICTURES = PictureDefaults(802_816, 802_816, _HALVES, _HALVES, max_side=896)
_KIMI_PICTURES = PictureDefaults(784, 3_211_264, _HALVES, _HALVES, video=KIMI, max_side=7168)

_BERTS = "BERT; bge, e5, gte, MiniLM"
_ROBERTAS = "RoBERTa; all-roberta, e5"
_XLM_ROBERTAS = "XLM-R; bge-m3, multilingual-e5"
_JINA_V3 = "XLM-R with rotation; jina-embeddings-v3"
_MODERNBERTS = "ModernBERT; gte-modernbert, nomic modernbert-embed"

# By the name that config.json gives.
_ARCHITECTURES = {
    "BertForMaskedLM": Architecture("encoders.bert", _BERTS, (ENCODER,)),
    "BertForSequenceClassification": Architecture(
        "encoders.bert", "MS MARCO rerankers; classifiers", (ENCODER, LABELS)
    ),
    "BertModel": Architecture("encoders.bert", _BERTS, (ENCODER,)),
    "CLIPModel": Architecture(
        "encoders.clip", "CLIP; OpenCLIP, saved by transformers", (ENCODER, TWO_TOWERS, IMAGES), pictures=_CLIP_PICTURES
    ),
    "DeepseekV2ForCausalLM": Architecture(
        "deepseek_v2",
        "DeepSeek V2, V2-Lite",
        (LATENT_ATTENTION, MIXTURE_OF_EXPERTS, GROUPED_ROUTING, SHARED_EXPERTS),
    ),
    "DeepseekV3ForCausalLM": Architecture(
        "deepseek_v3", "DeepSeek V3, R1; Kimi-K2", (LATENT_ATTENTION, *_DEEPSEEK_V3_EXPERTS, PREDICTION_LAYERS), "fp8"
    ),
    "DeepseekV32ForCausalLM": Architecture(
        "deepseek_v32",
        "DeepSeek V3.2, V3.2-Exp",
        (LATENT_ATTENTION, SPARSE_ATTENTION, *_DEEPSEEK_V3_EXPERTS, PREDICTION_LAYERS),
        "fp8",
    ),
    "Gemma3ForCausalLM": Architecture("gemma3", "Gemma 3 (text)", (FOUR_NORMS, QK_NORM, SLIDING_WINDOW)),
    "Gemma3ForConditionalGeneration": Architecture(
        "gemma3",
        "Gemma 3 4B, 12B, 27B",
        (FOUR_NORMS, QK_NORM, SLIDING_WINDOW, IMAGES),
        pictures=_SIGLIP_PICTURES,
    ),
    "Glm4MoeForCausalLM": Architecture(
        "glm4_moe",
        "GLM-4.5, 4.6, 4.7",
        (QKV_BIAS, QK_NORM, MIXTURE_OF_EXPERTS, GROUPED_ROUTING, CORRECTION_BIAS, SHARED_EXPERTS, PREDICTION_LAYERS),
    ),
    "Glm4MoeLiteForCausalLM": Architecture(
        "glm4_moe_lite", "GLM-4.7-Flash", (LATENT_ATTENTION, *_DEEPSEEK_V3_EXPERTS, PREDICTION_LAYERS)
    ),
    "GlmMoeDsaForCausalLM": Architecture(
        "glm_moe_dsa",
        "GLM-5, 5.2",
        (LATENT_ATTENTION, SPARSE_ATTENTION, MIXTURE_OF_EXPERTS, CORRECTION_BIAS, SHARED_EXPERTS, PREDICTION_LAYERS),
    ),
    "GptOssForCausalLM": Architecture(
        "gpt_oss", "GPT-OSS 20B, 120B", (SLIDING_WINDOW, SINKS, MIXTURE_OF_EXPERTS, EXPERT_BIAS), "mxfp4"
    ),
    "JinaEmbeddingsV3ForMaskedLM": Architecture("encoders.jina_embeddings_v3", _JINA_V3, (ENCODER, TASKS)),
    "JinaEmbeddingsV3ForSequenceClassification": Architecture(
        "encoders.jina_embeddings_v3", "Classifiers on jina-embeddings-v3", (ENCODER, LABELS)
    ),
    "JinaEmbeddingsV3Model": Architecture("encoders.jina_embeddings_v3", _JINA_V3, (ENCODER, TASKS)),
    "KimiK25ForConditionalGeneration": Architecture(
        "kimi_k25",
        "Kimi-K2.5, K2.6",
        (LATENT_ATTENTION, *_DEEPSEEK_V3_EXPERTS, IMAGES),
        "compressed-tensors",
        pictures=_KIMI_PICTURES,
    ),
    "KimiLinearForCausalLM": Architecture(
        "kimi_linear",
        "Kimi-Linear-48B-A3B",
        (GATED_DELTA_NET, LATENT_ATTENTION, MIXTURE_OF_EXPERTS, CORRECTION_BIAS, SHARED_EXPERTS),
    ),
    "LlamaForCausalLM": Architecture("llama", "Llama 2, 3, 3.1; SmolLM2"),
    "MiniMaxM2ForCausalLM": Architecture(
        "minimax_m2", "MiniMax-M2", (WIDE_QK_NORM, MIXTURE_OF_EXPERTS, CORRECTION_BIAS), "fp8"
    ),
    "Ministral3ForCausalLM": Architecture("mistral3", "Ministral 3, saved as text models", (SLIDING_WINDOW,)),
    "Mistral3ForConditionalGeneration": Architecture(
        "mistral3", "Mistral Small 3.1, 3.2; Ministral 3", (SLIDING_WINDOW, IMAGES), pictures=_PIXTRAL_PICTURES
    ),
    "MistralForCausalLM": Architecture("mistral", "Mistral", (SLIDING_WINDOW,)),
    "MixtralForCausalLM": Architecture("mixtral", "Mixtral 8x7B, 8x22B", (SLIDING_WINDOW, MIXTURE_OF_EXPERTS)),
    "ModernBertForMaskedLM": Architecture("encoders.modernbert", _MODERNBERTS, (ENCODER, SLIDING_WINDOW)),
    "ModernBertForSequenceClassification": Architecture(
        "encoders.modernbert", "GTE ModernBERT rerankers", (ENCODER, LABELS, SLIDING_WINDOW)
    ),
    "ModernBertModel": Architecture("encoders.modernbert", _MODERNBERTS, (ENCODER, SLIDING_WINDOW)),
    "NemotronForCausalLM": Architecture("nemotron", "Nemotron-4, Minitron", (UNGATED_MLP, LAYER_NORM)),
    "Qwen2_5_VLForConditionalGeneration": Architecture(
        "qwen2_5_vl",
        "Qwen2.5-VL-3B, 7B, 32B, 72B",
        (QKV_BIAS, SLIDING_WINDOW, IMAGES),
        pictures=_QWEN2_PICTURES,
    ),
    "Qwen2ForCausalLM": Architecture("qwen2", "Qwen2, 2.5", (QKV_BIAS, SLIDING_WINDOW)),
    "Qwen3_5ForCausalLM": Architecture("qwen3_5", "Qwen3.5 dense, saved as text models", _QWEN_HYBRID),
    "Qwen3_5ForConditionalGeneration": Architecture(
        "qwen3_5", "Qwen3.5-0.8B to 27B", (*_QWEN_HYBRID, IMAGES), pictures=_QWEN3_PICTURES
    ),
    "Qwen3_5MoeForCausalLM": Architecture(
        "qwen3_5", "Qwen3.5 mixtures, saved as text models", (*_QWEN_HYBRID, *_QWEN_EXPERTS)
    ),
    "Qwen3_5MoeForConditionalGeneration": Architecture(
        "qwen3_5",
        "Qwen3.5-35B-A3B, 122B-A10B, 397B-A17B",
        (*_QWEN_HYBRID, *_QWEN_EXPERTS, IMAGES),
        pictures=_QWEN3_PICTURES,
    ),
    "Qwen3ForCausalLM": Architecture("qwen3", "Qwen3", (QK_NORM, SLIDING_WINDOW)),
    "Qwen3ForSequenceClassification": Architecture(
        "qwen3", "Qwen3-Reranker, converted to labels", (QK_NORM, SLIDING_WINDOW, LABELS)
    ),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", "Qwen3-30B-A3B, 235B-A22B", (QK_NORM, MIXTURE_OF_EXPERTS)),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        "qwen3_vl",
        "Qwen3-VL-30B-A3B, 235B-A22B",
        (QK_NORM, MIXTURE_OF_EXPERTS, IMAGES),
        pictures=_QWEN3_PICTURES,
    ),
    "Qwen3VLForConditionalGeneration": Architecture(
        "qwen3_vl", "Qwen3-VL-2B to 32B; Qwen3-VL-Embedding", (QK_NORM, IMAGES), pictures=_QWEN3_PICTURES
    ),
    "Qwen3NextForCausalLM": Architecture(
        "qwen3_next", "Qwen3-Next-80B-A3B", (*_QWEN_HYBRID, *_QWEN_EXPERTS), num_undeclared=1
    ),
    "RobertaForMaskedLM": Architecture("encoders.roberta", _ROBERTAS, (ENCODER,)),
    "RobertaForSequenceClassification": Architecture(
        "encoders.roberta", "RoBERTa classifiers and rerankers", (ENCODER, LABELS)
    ),
    "RobertaModel": Architecture("encoders.roberta", _ROBERTAS, (ENCODER,)),
    "SiglipModel": Architecture(
        "encoders.siglip",
        "SigLIP; SigLIP 2 of fixed sizes",
        (ENCODER, TWO_TOWERS, PADDED, IMAGES),
        pictures=_SIGLIP_BASE_PICTURES,
    ),
    "XLMRobertaForMaskedLM": Architecture("encoders.roberta", _XLM_ROBERTAS, (ENCODER,)),
    "XLMRobertaForSequenceClassification": Architecture(
        "encoders.roberta", "BGE rerankers (base, large, v2-m3); jina-reranker-v2", (ENCODER, LABELS)
    ),
    "XLMRobertaModel": Architecture("encoders.roberta", _XLM_ROBERTAS, (ENCODER,)),
}


# Fields that say that a model takes more than text, in the spellings of its publishers.
_OTHER_MODALITIES = (
    *("vision_config", "visual", "vision_tower", "mm_vision_tower", "image_token_id", "image_token_index"),
    *("video_token_id", "audio_config", "audio_token_id", "speech_config", "thinker_config"),
)


class UnsupportedArchitectureError(CheckpointError):
    """A checkpoint's architecture is not implemented; the message names those that are, and the nearest."""


def supported_architectures() -> tuple[str, ...]:
    """Names of all architectures that can be built."""
    return tuple(sorted(_ARCHITECTURES))


def describe_architecture(name: str) -> Architecture:
    """Models and features of an architecture; nothing of it is imported.

    Raises:
        UnsupportedArchitectureError: it is not implemented.
    """
    check_architecture(name)
    return _ARCHITECTURES[name]


def keeps_states(name: str) -> bool:
    """Whether some layers of an architecture keep one state a request; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].keeps_states


def is_encoder(name: str) -> bool:
    """Whether an architecture reads texts in both directions; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].is_encoder


def has_two_towers(name: str) -> bool:
    """Whether an architecture has an encoder of texts and one of pictures; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].has_two_towers


def pads_texts(name: str) -> bool:
    """Whether an architecture's texts are filled up to the longest; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].pads_texts


def has_labels(name: str) -> bool:
    """Whether an architecture ends in scores of labels; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].has_labels


def has_tasks(name: str) -> bool:
    """Whether an architecture's checkpoints may come with adapters for tasks; False for one without a file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].has_tasks


def has_experts(name: str) -> bool:
    """Whether some layers of an architecture are mixtures of experts; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].has_experts


def has_sparse_attention(name: str) -> bool:
    """Whether an index chooses what layers of an architecture attend to; False for one that has no file here."""
    return name in _ARCHITECTURES and _ARCHITECTURES[name].has_sparse_attention


def picture_defaults(name: str) -> PictureDefaults | None:
    """How an architecture's pictures are prepared where no file says so; None where it takes none."""
    return _ARCHITECTURES[name].pictures if name in _ARCHITECTURES else None


def check_architecture(name: str, config: Mapping[str, Any] | None = None) -> None:
    """Raises UnsupportedArchitectureError unless `find_architecture` would find it; `config` tells why it does not."""
    if name in _ARCHITECTURES:
        return
    # Where classes share a stem the last one is told: one without labels, if there is one.
    stems = {_stem(known): known for known in sorted(_ARCHITECTURES, key=lambda one: not has_labels(one))}
    nearest = difflib.get_close_matches(_stem(name), stems, n=1, cutoff=0.65)
    supported = ", ".join(supported_architectures())
    parts = other_modalities(config or {})
    if parts:
        hint = f" such as one of {stems[nearest[0]]}" if nearest else ""
        raise UnsupportedArchitectureError(
            f"the architecture {name} is multimodal (config.json has {', '.join(parts)}) and is not supported: this "
            f"version runs text models alone. Use a text-only checkpoint{hint}; supported: {supported}."
        )
    hint = f" The nearest is {stems[nearest[0]]}." if nearest else ""
    raise UnsupportedArchitectureError(
        f"the architecture {name} is not supported; supported: {supported}. Use a model of one of these.{hint}"
    )


def other_modalities(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields by which a config says that its model takes more than text."""
    return tuple(part for part in _OTHER_MODALITIES if config.get(part) is not None)


def _stem(name: str) -> str:
    """A name without the endings that most names share."""
    return re.sub(r"(For[A-Z].*|LMHeadModel|Model)$", "", name).lower()


def find_architecture(name: str) -> type[nn.Module]:
    """The class of an architecture.

    Raises:
        UnsupportedArchitectureError: it is not implemented.
    """
    module = describe_architecture(name).module
    return getattr(importlib.import_module(f"atom_models.architectures.{module}"), name)
