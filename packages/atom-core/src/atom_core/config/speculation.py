"""`read_speculation`: what the settings ask for of speculative decoding, in flags or in vLLM's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_core.config.options import ConfigError
from atom_core.speculation.config import SpeculationConfig

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs

METHODS = ("ngram", "mtp", "eagle", "eagle3", "draft_model", "suffix")
BUILT = ("ngram",)
MOST_TOKENS = 16
# Tokens that are compared at most; longer agreements say no more.
MOST_COMPARED = 64

# vLLM's names -> ours.
_COUNTS = {
    "num_speculative_tokens": ("num_tokens", 1, MOST_TOKENS),
    "prompt_lookup_min": ("prompt_lookup_min", 1, MOST_COMPARED),
    "prompt_lookup_max": ("prompt_lookup_max", 1, MOST_COMPARED),
}
_FIELDS = ("method", *_COUNTS, "adaptive")


def read_speculation(args: EngineArgs) -> SpeculationConfig | None:
    """The speculation of `args`, None without.

    Raises:
        ConfigError: it cannot be.
    """
    if args.speculative_config is None:
        if args.method is None and args.num_speculative_tokens > 1:
            raise ConfigError(
                f"num_speculative_tokens is {args.num_speculative_tokens}, and no method guesses any: give method ngram"
            )
        return None if args.method is None else SpeculationConfig(num_tokens=args.num_speculative_tokens)
    if args.method is not None or args.num_speculative_tokens > 1:
        raise ConfigError("speculative_config says what method and num_speculative_tokens do: give it alone")
    return _read_json(args.speculative_config)


def asked_method(args: EngineArgs) -> Any:
    """The method that is asked for, whatever it is; None without."""
    return args.method if args.speculative_config is None else args.speculative_config.get("method")


def _read_json(given: Mapping[str, Any]) -> SpeculationConfig:
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise ConfigError(f"speculative_config has {unknown[0]!r}; it may have {', '.join(_FIELDS)}")
    if given.get("method") not in BUILT:
        raise ConfigError(f"speculative_config has the method {given.get('method')!r}; allowed are {', '.join(BUILT)}")
    values: dict[str, Any] = {
        name: _count(field, given[field], least, most)
        for field, (name, least, most) in _COUNTS.items()
        if given.get(field) is not None
    }
    shortest, longest = values.get("prompt_lookup_min"), values.get("prompt_lookup_max")
    default = SpeculationConfig()
    shortest = min(default.prompt_lookup_min, longest or MOST_COMPARED) if shortest is None else shortest
    longest = max(default.prompt_lookup_max, shortest) if longest is None else longest
    if shortest > longest:
        raise ConfigError(
            f"speculative_config has prompt_lookup_min {shortest} above prompt_lookup_max {longest}: turn them round"
        )
    adaptive = given.get("adaptive", True)
    if not isinstance(adaptive, bool):
        raise ConfigError(f"speculative_config has adaptive {adaptive!r}; it must be true or false")
    return SpeculationConfig(
        **values | {"prompt_lookup_min": shortest, "prompt_lookup_max": longest, "adaptive": adaptive}
    )


def _count(field: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"speculative_config has {field} {value!r}; it must be a whole number from {least} to {most}")
    return value
