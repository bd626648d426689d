"""What architectures do beyond Llama, in the words that lists show. Torch-free."""

from __future__ import annotations

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
MIXTURE_OF_EXPERTS = "mixture of experts"
# Routers have a weight for each expert that chooses and does not weigh.
CORRECTION_BIAS = "biased choice of experts"
GROUPED_ROUTING = "grouped routing"
SHARED_EXPERTS = "shared experts"
# Biases in the router and in each expert.
EXPERT_BIAS = "expert biases"
# Layers for multi-token prediction may be in the checkpoint: they are not loaded.
PREDICTION_LAYERS = "prediction layers skipped"
