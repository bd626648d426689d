"""`atom-vllm doctor MODEL`: what vLLM would run here for a model, and why, without its weights."""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

from atom_vllm import __version__, compat, settings

Line = tuple[str, str]


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 where ATOM would be active."""
    parser = argparse.ArgumentParser(prog="atom-vllm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help=__doc__, description=__doc__)
    doctor.add_argument("model", nargs="?", help="folder or name of a model, as for `vllm serve`")
    doctor.add_argument("--dtype", default="auto", help="as for `vllm serve`")
    doctor.add_argument("--kv-cache-dtype", default="auto", help="as for `vllm serve`")
    options = parser.parse_args(arguments)
    lines = list(_installation())
    reason = _why_inactive()
    lines.append(("plugin", f"inactive: {reason}" if reason else "active"))
    if compat.vllm_version() is not None:
        lines += _platform()
        if options.model and reason is None:
            lines += _model(options)
    width = max(len(name) for name, _ in lines)
    print("\n".join(f"{name:{width}}  {value}" for name, value in lines))
    return 0 if reason is None else 1


def _installation() -> Iterator[Line]:
    yield "atom-vllm", __version__
    for name in ("atom-kernels", "atom-models", "torch", "transformers", "triton"):
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"
    version = compat.vllm_version()
    yield "vllm", "not installed" if version is None else str(version)
    for point in importlib.metadata.entry_points(group="vllm.platform_plugins"):
        if not point.value.startswith("atom_vllm."):
            yield (
                "other plugin",
                f"{point.name} ({point.dist.name if point.dist else point.value}): choose by VLLM_PLUGINS",
            )


def _why_inactive() -> str | None:
    if settings.is_disabled():
        return "ATOM_DISABLE_VLLM_PLUGIN is set"
    return None if settings.is_forced() else compat.why_not_supported(compat.vllm_version())


def _platform() -> Iterator[Line]:
    from vllm.platforms import current_platform

    ours, over = type(current_platform).__mro__[:2]
    yield "platform", f"{ours.__module__}.{ours.__name__} over {over.__name__}"


def _model(options: argparse.Namespace) -> Iterator[Line]:
    from vllm.engine.arg_utils import EngineArgs

    from atom_vllm import features

    config: Any = EngineArgs(
        model=options.model, dtype=options.dtype, kv_cache_dtype=options.kv_cache_dtype, skip_tokenizer_init=True
    ).create_engine_config()
    model = config.model_config
    architecture = model.hf_config.architectures[0]
    yield "architecture", architecture
    from atom_vllm.architectures import has_experts, overridden

    if architecture not in overridden():
        reason = "it is not among ATOM's, or not on the allow-list"
    else:
        reason = features.why_not_ours(config)
    wrapper = "ATOMMoEForCausalLM" if has_experts(architecture) else "ATOMForCausalLM"
    yield "model", f"vLLM's own, because {reason}" if reason else f"atom_vllm.model_wrapper.{wrapper}"
    yield "attention", _attention(model, config)


def _attention(model: Any, config: Any) -> str:
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    with set_current_vllm_config(config):
        backend = get_attn_backend(
            model.get_head_size(), model.dtype, config.cache_config.cache_dtype, use_mla=bool(model.use_mla)
        )
    return f"{backend.__module__}.{backend.__name__}"


if __name__ == "__main__":
    sys.exit(main())
