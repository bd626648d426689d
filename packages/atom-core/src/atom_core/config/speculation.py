"""`read_speculation`: what the settings ask for of speculative decoding, in flags or in vLLM's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_core.config.options import ConfigError
from atom_core.speculation.config import SpeculationConfig, SuffixConfig
from atom_kernels.protocols.slots import Slots
from atom_models.architectures.registry import keeps_states

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs

METHODS = ("ngram", "suffix", "mtp", "eagle", "eagle3", "draft_model")
# Methods whose head or model has a folder of its own.
WITH_MODEL = ("eagle", "eagle3", "draft_model")
MOST_TOKENS = 16
# Formats to which plain weights may be rounded.
QUANTIZATIONS = ("auto", "none", "int8", "int4", "fp8", "fp8_block", "mxfp4")
# As many as agree, but no more than models take that keep states; and as many as a whole model is often right about.
_DEFAULT_TOKENS = {"suffix": Slots.most_each - 1, "draft_model": 4}
# Tokens that are compared at most; longer agreements say no more.
MOST_COMPARED = 64

# vLLM's names -> ours, with what is allowed.
_COUNTS = {
    "num_speculative_tokens": ("num_tokens", 1, MOST_TOKENS),
    "prompt_lookup_min": ("prompt_lookup_min", 1, MOST_COMPARED),
    "prompt_lookup_max": ("prompt_lookup_max", 1, MOST_COMPARED),
    "suffix_decoding_max_tree_depth": ("max_tree_depth", 4, MOST_COMPARED),
    "suffix_decoding_max_cached_requests": ("max_cached_requests", 0, 1_000_000),
}
_NUMBERS = {
    "suffix_decoding_max_spec_factor": ("max_spec_factor", 0.25, 16.0),
    "suffix_decoding_min_token_prob": ("min_token_prob", 0.0, 1.0),
}
_OF_ONE_METHOD = {
    field: "ngram" if field.startswith("prompt_lookup") else "suffix"
    for field in (*_COUNTS, *_NUMBERS)
    if field != "num_speculative_tokens"
} | {"quantization": "draft_model"}
_FIELDS = ("method", "model", *_COUNTS, *_NUMBERS, "quantization", "adaptive")


def read_speculation(args: EngineArgs) -> SpeculationConfig | None:
    """The speculation of `args`, None without.

    Raises:
        ConfigError: it cannot be.
    """
    method, num_tokens, model = args.method, args.num_speculative_tokens, args.draft_model
    if args.speculative_config is None:
        if method is None and model is not None:
            method = "draft_model"
        if method is None and num_tokens is not None and num_tokens > 1:
            raise ConfigError(f"num_speculative_tokens is {num_tokens}, and no method guesses any: give method ngram")
        if method is None:
            return None
        return _read_json({"method": method, "model": model, "num_speculative_tokens": num_tokens})
    if method is not None or num_tokens is not None or model is not None:
        raise ConfigError(
            "speculative_config says what method, draft_model and num_speculative_tokens do: give it alone"
        )
    return _read_json(args.speculative_config)


def check_num_states(num_drafts: int, architecture: str) -> None:
    """Raise ConfigError where a model keeps a state for each draft, and cannot keep so many."""
    most = Slots.most_each - 1
    if num_drafts > most and keeps_states(architecture):
        raise ConfigError(
            f"num_speculative_tokens is {num_drafts}; {architecture} keeps a state for each draft, {most} at most: "
            "ask for no more"
        )


def _read_json(given: Mapping[str, Any]) -> SpeculationConfig:
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise ConfigError(f"speculative_config has {unknown[0]!r}; it may have {', '.join(_FIELDS)}")
    if given.get("method") not in METHODS:
        raise ConfigError(
            f"speculative_config has the method {given.get('method')!r}; allowed are {', '.join(METHODS)}"
        )
    method, model = given["method"], given.get("model")
    _check_model(method, model)
    given = {field: value for field, value in given.items() if value is not None}
    for field, of_method in _OF_ONE_METHOD.items():
        if field in given and method != of_method:
            raise ConfigError(
                f"speculative_config has {field!r}, which is for {of_method}, beside {method}: leave it out"
            )
    values: dict[str, Any] = {"num_tokens": _DEFAULT_TOKENS.get(method, 1)}
    values |= {
        name: _count(field, given[field], least, most)
        for field, (name, least, most) in _COUNTS.items()
        if field in given
    }
    values |= {
        name: _number(field, given[field], least, most)
        for field, (name, least, most) in _NUMBERS.items()
        if field in given
    }
    adaptive = given.get("adaptive", True)
    if not isinstance(adaptive, bool):
        raise ConfigError(f"speculative_config has adaptive {adaptive!r}; it must be true or false")
    shortest, longest = _lookup(values.pop("prompt_lookup_min", None), values.pop("prompt_lookup_max", None))
    of_suffix = {name: values.pop(name) for name in SuffixConfig.__struct_fields__ if name in values}
    return SpeculationConfig(
        method=method,
        model=model,
        prompt_lookup_min=shortest,
        prompt_lookup_max=longest,
        adaptive=adaptive,
        quantization=_quantization(given.get("quantization", "auto")),
        suffix=SuffixConfig(**of_suffix),
        **values,
    )


def _lookup(shortest: int | None, longest: int | None) -> tuple[int, int]:
    """Both bounds of what n-grams compare. One that is given moves the default of the other where it has to."""
    default = SpeculationConfig()
    shortest = min(default.prompt_lookup_min, longest or MOST_COMPARED) if shortest is None else shortest
    longest = max(default.prompt_lookup_max, shortest) if longest is None else longest
    if shortest > longest:
        raise ConfigError(
            f"speculative_config has prompt_lookup_min {shortest} above prompt_lookup_max {longest}: turn them round"
        )
    return shortest, longest


def _check_model(method: str, model: Any) -> None:
    if method not in WITH_MODEL and model is not None:
        raise ConfigError(f"there is a model beside {method}, which needs none: leave it out")
    if method in WITH_MODEL and (not isinstance(model, str) or not model):
        raise ConfigError(
            f"method {method} needs the folder or name of its {'model' if method == 'draft_model' else 'head'}: give "
            "draft_model, or `model` in speculative_config"
        )


def _quantization(value: Any) -> str:
    if value not in QUANTIZATIONS:
        raise ConfigError(f"speculative_config has quantization {value!r}; allowed are {', '.join(QUANTIZATIONS)}")
    return value


def _count(field: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"speculative_config has {field} {value!r}; it must be a whole number from {least} to {most}")
    return value


def _number(field: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"speculative_config has {field} {value!r}; it must be a number from {least:g} to {most:g}")
    return float(value)
