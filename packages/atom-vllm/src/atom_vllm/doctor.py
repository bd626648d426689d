"""`atom-vllm doctor [MODEL]`: what vLLM would run here, and why, without reading weights."""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from atom_kernels import known_variables
from atom_vllm import __version__, compat, settings
from atom_vllm.engine_settings import translate
from atom_vllm.others import other_plugins

Line = tuple[str, str]
_PACKAGES = ("atom-kernels", "atom-models", "torch", "transformers", "triton", "amd-aiter")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 where ATOM would be active."""
    parser = argparse.ArgumentParser(prog="atom-vllm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help=__doc__, description=__doc__, epilog="Every other flag is one of `vllm serve`."
    )
    doctor.add_argument("model", nargs="?", help="folder or name of a model, as for `vllm serve`")
    options, flags = parser.parse_known_args(arguments)
    if flags and options.model is None:
        parser.error(f"{flags[0]} is of no use without a model")
    lines = list(_installation())
    reason = _why_inactive()
    lines.append(("plugin", f"inactive: {reason}" if reason else "active"))
    lines += _switches()
    if compat.vllm_version() is not None:
        lines += _platform()
        if options.model and reason is None:
            lines += _model(options.model, flags)
    width = max(len(name) for name, _ in lines)
    print("\n".join(f"{name:{width}}  {value}" for name, value in lines))
    return 0 if reason is None else 1


def _installation() -> Iterator[Line]:
    yield "atom-vllm", __version__
    for name in _PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"
    version = compat.vllm_version()
    yield "vllm", "not installed" if version is None else f"{version} ({compat.supported_range()} are supported)"
    for other in other_plugins():
        yield "other plugin", str(other)


def _why_inactive() -> str | None:
    if settings.is_disabled():
        return "ATOM_DISABLE_VLLM_PLUGIN is set"
    if (left_out := settings.left_out_by_vllm()) is not None:
        return left_out
    return None if settings.is_forced() else compat.why_not_supported(compat.vllm_version())


def _switches() -> Iterator[Line]:
    for line in known_variables.warnings():
        yield "warning", line
    if settings.is_attention_disabled():
        yield "attention", "vLLM's everywhere: ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is set"
    if (allowed := settings.allowed_architectures()) is not None:
        yield "allowed", ", ".join(sorted(allowed)) or "no architecture: ATOM_VLLM_ARCHITECTURES is empty"


def _platform() -> Iterator[Line]:
    from vllm.platforms import current_platform

    from atom_kernels.platform import detect_platform

    ours, over = type(current_platform).__mro__[:2]
    yield "platform", f"{ours.__module__}.{ours.__name__} over {over.__name__}"
    here = detect_platform()
    yield "kernels", f"{here.name}: {', '.join(here.backends)}"
    for name, reason in here.unavailable:
        yield "", f"without {name}: {reason}"


def _model(model: str, flags: list[str]) -> Iterator[Line]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from atom_vllm.decisions import decide

    parsed = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", model, *flags])
    config: Any = EngineArgs.from_cli_args(parsed).create_engine_config()
    yield "architecture", config.model_config.hf_config.architectures[0]
    try:
        decision = decide(config)
    except Exception as error:  # vLLM's own refusal is what the user wants to know
        yield "attention", f"vLLM refuses: {type(error).__name__}: {error}"
        return
    reason = decision.model_reason
    yield "model", f"vLLM's own, because {reason}" if reason else decision.model
    reason = decision.attention_reason
    yield "attention", f"{decision.attention}, because {reason}" if reason else decision.attention
    compilation = config.compilation_config
    yield "compile", f"{compilation.mode.name}, graphs {compilation.cudagraph_mode.name}"
    yield "settings", "vLLM's, under our names"
    for name, value in asdict(translate(config)).items():
        yield f"  {name}", str(value)


if __name__ == "__main__":
    sys.exit(main())
