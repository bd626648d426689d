"""In which of vLLM's ways to speculate our models serve as the target, and why not in the others."""

from __future__ import annotations

from typing import Any

# They guess by tokens alone, and ask nothing of the model.
BY_TOKENS = ("ngram", "ngram_gpu", "suffix")
# Heads, beside all that are prediction layers of some model.
HEADS = ("eagle", "eagle3", "dflash", "dspark")
# A model by itself guesses; vLLM builds it by the class of its architecture, as it does the target.
BY_WHOLE_MODEL = "draft_model"


def why_not_a_target(vllm_config: Any) -> str | None:
    """Why vLLM's own model must serve where its configuration speculates; None where ours can.

    A head (EAGLE's kinds, prediction layers) is a class of vLLM's that takes the target's embedding and head for layers
    of its own: it calls them by vLLM's methods and compares their weights. Ours hold weights packed for our kernels.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return None
    method = str(speculative.method)
    if method in BY_TOKENS:
        return None
    if method in HEADS or method.endswith("mtp"):
        return (
            f"speculative decoding by {method} is asked for, whose layers take the embedding and the head of the model "
            "for vLLM's own"
        )
    if method != BY_WHOLE_MODEL:
        return f"speculative decoding by {method} is asked for, which has not been tried with models of ours"
    if vllm_config.model_config is speculative.draft_model_config:
        return "it drafts for another model, and the layers of two models of ours would have the same names"
    return None
