"""The two functions that vLLM calls, in each of its processes, because this package is installed."""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import sys

from atom_kernels import known_variables
from atom_vllm import __version__, compat, settings
from atom_vllm.others import NAME, other_plugins

# vLLM configures its own logger alone; ours hangs below it, so that its level and format hold.
logger = logging.getLogger("vllm.atom")


def register_platform() -> str | None:
    """`vllm.platform_plugins`: the qualified name of our platform, or None to leave vLLM as it is.

    vLLM swallows whatever is raised here and goes on without a word, so errors are shown before they are raised, and
    `register_model` then refuses to go on.
    """
    global _failure
    if settings.is_disabled():
        return None
    try:
        return _platform()
    except Exception as error:
        _failure = error
        print(f"atom-vllm could not make its platform: {type(error).__name__}: {error}", file=sys.stderr)
        raise


def register_model() -> None:
    """`vllm.general_plugins`: put our models in the place of vLLM's in its registry.

    Raises:
        RuntimeError: `register_platform` failed, which vLLM does not tell anyone.
    """
    if settings.is_disabled():
        return
    if _failure is not None:
        raise RuntimeError(
            f"atom-vllm could not make its platform ({type(_failure).__name__}: {_failure}): mend that, or set "
            "ATOM_DISABLE_VLLM_PLUGIN=1"
        ) from _failure
    if (reason := _why_to_keep_out()) is not None:
        return logger.warning("atom-vllm keeps out: %s; ATOM_VLLM_FORCE=1 tries all the same", reason)
    from vllm import ModelRegistry

    from atom_vllm.models.architectures import overridden, wrapper_name

    names = overridden()
    for architecture in names:
        ModelRegistry.register_model(architecture, f"atom_vllm.models.model_wrapper:{wrapper_name(architecture)}")
        logger.debug(
            "Register model %s to vLLM with atom_vllm.models.model_wrapper:%s", architecture, wrapper_name(architecture)
        )
    for line in known_variables.warnings():
        logger.warning("%s", line)
    logger.info("atom-vllm %s is active in vLLM %s: %d architectures", __version__, compat.vllm_version(), len(names))


def _platform() -> str | None:
    if (reason := _why_to_keep_out()) is not None:
        print(f"atom-vllm keeps out: {reason}; ATOM_VLLM_FORCE=1 tries all the same", file=sys.stderr)
        return None
    _warn_of_others()
    base = compat.builtin_platform()
    from atom_vllm import platform

    if base not in platform.NAMES:
        print(f"atom-vllm keeps out: it knows no platform over {base}", file=sys.stderr)
        return None
    platform.make_platform(base)  # what fails, fails here, where it is reported
    return f"{platform.__name__}.{platform.NAMES[base]}"


def _why_to_keep_out() -> str | None:
    return None if settings.is_forced() else compat.why_not_supported(compat.vllm_version())


def _warn_of_others() -> None:
    """Two platform plugins that both want to be active stop vLLM; say whose they are before it does."""
    for other in other_plugins():
        if other.shares_our_name or settings.chosen_by_vllm() is None:
            print(f"atom-vllm: beside {NAME} of atom-vllm there is a platform plugin {other}", file=sys.stderr)


_failure: Exception | None = None
