"""Every environment variable that this package reads, each behind one function."""

from __future__ import annotations

import os

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def is_disabled() -> bool:
    """``ATOM_DISABLE_VLLM_PLUGIN``: leave vLLM as it is, platform and models."""
    return _switch("ATOM_DISABLE_VLLM_PLUGIN")


def is_attention_disabled() -> bool:
    """``ATOM_DISABLE_VLLM_PLUGIN_ATTENTION``: leave attention to vLLM, and all of a model whose attention is latent."""
    return _switch("ATOM_DISABLE_VLLM_PLUGIN_ATTENTION")


def is_forced() -> bool:
    """``ATOM_VLLM_FORCE``: run with versions of vLLM that were not tried."""
    return _switch("ATOM_VLLM_FORCE")


def chosen_by_vllm() -> frozenset[str] | None:
    """``VLLM_PLUGINS``, vLLM's own: names of the plugins that vLLM may load; unset (None) is all."""
    text = os.environ.get("VLLM_PLUGINS")
    return None if text is None else frozenset(name.strip() for name in text.split(","))


def left_out_by_vllm() -> str | None:
    """How VLLM_PLUGINS, vLLM's own choice of plugins, leaves one of ours out; None where it does not."""
    if (named := chosen_by_vllm()) is None:
        return None
    missing = [name for name in ("atom", "atom_model_registry") if name not in named]
    return f"VLLM_PLUGINS leaves out {' and '.join(missing)}" if missing else None


def compiles(default: bool) -> bool:
    """``ATOM_VLLM_COMPILE``: whether our models take part in vLLM's torch.compile; unset (`default`): on GPUs."""
    return _switch("ATOM_VLLM_COMPILE") if os.environ.get("ATOM_VLLM_COMPILE") else default


def allowed_architectures() -> frozenset[str] | None:
    """``ATOM_VLLM_ARCHITECTURES``: the architectures that ATOM may run, with commas between; unset (None) is all."""
    text = os.environ.get("ATOM_VLLM_ARCHITECTURES")
    return None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())


def _switch(name: str) -> bool:
    text = os.environ.get(name, "").strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"{name} is {text!r}; it must be 1 or 0")
    return text in _TRUE
