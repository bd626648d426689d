"""`EmbeddingModel`: what a model's folder says about its vectors. Torch-free."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atom_core.engine.encoder_files import SETTINGS, read_json, read_object
from atom_core.errors import InvalidRequestError
from atom_core.messages import Pooling, PoolingKind
from atom_models.architectures.registry import has_two_towers

logger = logging.getLogger(__name__)

# Ways of pooling as `sentence-transformers` spells them.
_POOLINGS: dict[str, PoolingKind] = {
    "cls": "cls",
    "cls_token": "cls",
    "lasttoken": "last",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",
    "mean_tokens": "mean",
}
# What points where the mean does, and has another length.
_OTHER_LENGTHS = ("mean_sqrt_len_tokens",)
# Modules that a vector goes through; others would change it.
_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class EmbeddingModel:
    """How prompts become vectors where a request does not say.

    Attributes:
        pooling: what the model's `sentence-transformers` modules do; "mean" where it has none.
        normalizes: vectors have length 1: the modules say so, or there are none.
        refusal: why those modules cannot be followed, so that requests must choose a pooling; None if they can be.
        shorter: lengths that its vectors may be cut to; empty if none.
        is_any_shorter: whether every length will do (a matryoshka model that lists none).
        prompts: what the model was trained to have before texts, by name.
        default_prompt: the name of that which stands before every text; None if there is none.
        leaves_prompts_out: vectors are pooled from what follows a prompt.
        tasks: what its vectors may be made for, each by an adapter of that name.
        has_two_towers: the model itself makes vectors, of texts and of pictures, and nothing else can be pooled.
    """

    pooling: PoolingKind = "mean"
    normalizes: bool = True
    refusal: str | None = None
    shorter: tuple[int, ...] = ()
    is_any_shorter: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    leaves_prompts_out: bool = False
    has_two_towers: bool = False
    tasks: Sequence[str] = ()

    @classmethod
    def read(cls, path: str | Path, tasks: Sequence[str] = ()) -> EmbeddingModel:
        """What the folder at `path` says; a file, or a folder that says nothing, gives the defaults."""
        folder = Path(path)
        config = read_object(folder / "config.json")
        names = config.get("architectures")
        if isinstance(names, list) and names and has_two_towers(str(names[0])):
            return cls(pooling="last", has_two_towers=True)
        dimensions = config.get("matryoshka_dimensions")
        shorter = tuple(size for size in dimensions if type(size) is int) if isinstance(dimensions, list) else ()
        prompts, default = _prompts(folder, config)
        return cls(
            *_pooling(folder),
            shorter,
            not shorter and config.get("is_matryoshka") is True,
            prompts,
            default,
            read_object(folder / "1_Pooling" / "config.json").get("include_prompt") is False,
            tasks=tasks,
        )

    def choose_pooling(self, pooling: PoolingKind | None) -> Pooling:
        """A request's own pooling, else the model's; both are normalized as the model's are.

        Raises:
            InvalidRequestError: it has none, and the model's cannot be done; or it has another than the only one.
        """
        if self.has_two_towers and pooling not in (None, self.pooling):
            message = f"pooling is {pooling!r}; this model makes its vectors itself: leave 'pooling' out"
            raise InvalidRequestError(message, "pooling")
        if pooling is None and self.refusal is not None:
            raise InvalidRequestError(f"{self.refusal}; choose a pooling: mean, last or cls", "pooling")
        return Pooling(pooling or self.pooling, self.normalizes)

    def prompt(self, name: str | None, task: str | None = None) -> str:
        """What is put before a text: the prompt of that name, or that of the task, or the model's default.

        Raises:
            InvalidRequestError: there is none of that name, or no such task, or the model leaves prompts out of its
                vectors.
        """
        self.check_task(task)
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "no prompts: leave 'prompt_name' out"
            raise InvalidRequestError(f"prompt_name is {name[:64]!r}; this model has {known}", "prompt_name")
        of_task = task if task in self.prompts else None
        text = self.prompts.get(name or of_task or self.default_prompt or "", "")
        if text and self.leaves_prompts_out:
            message = "this model leaves its prompts out of the pooling, which is not supported: send token ids"
            raise InvalidRequestError(message, "prompt_name", "unsupported_parameter")
        return text

    def check_task(self, task: str | None) -> None:
        """Raise InvalidRequestError unless vectors can be made for `task`."""
        if task is not None and task not in self.tasks:
            known = ", ".join(map(repr, self.tasks))
            message = f"task is {task[:64]!r}; this model has {known or 'no tasks'}"
            if known:
                raise InvalidRequestError(message, "task")
            raise InvalidRequestError(f"{message}: leave 'task' out", "task", "unsupported_parameter")

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise InvalidRequestError unless vectors can be cut to `dimensions`."""
        if dimensions is None or self.is_any_shorter or dimensions in self.shorter:
            return
        allowed = f"to {', '.join(map(str, self.shorter))}" if self.shorter else "not at all: leave 'dimensions' out"
        message = f"dimensions is {dimensions}; this model's vectors can be cut {allowed}"
        raise InvalidRequestError(message, "dimensions", "invalid_value" if self.shorter else "unsupported_parameter")


def shortened(vector: Sequence[float], dimensions: int | None, *, normalizes: bool = True) -> list[float]:
    """The first `dimensions` numbers of a vector, at length 1 again if it `normalizes`; all of it with None."""
    kept = list(vector[:dimensions])
    if not normalizes:
        return kept
    length = math.sqrt(sum(value * value for value in kept))
    return [value / length for value in kept] if length and len(kept) < len(vector) else kept


def _pooling(folder: Path) -> tuple[PoolingKind, bool, str | None]:
    """The pooling of the folder's modules, whether they normalize, and why they cannot be followed."""
    modules = read_json(folder / "modules.json")
    modules = modules if isinstance(modules, list) else []
    kinds = [str(one.get("type")).rpartition(".")[2] if isinstance(one, dict) else str(one) for one in modules]
    pooling: PoolingKind = "mean"
    normalizes = not modules or "Normalize" in kinds
    for kind, module in zip(kinds, modules, strict=True):
        if kind not in _MODULES:
            return (
                pooling,
                normalizes,
                f"modules.json has a {kind}, which would change the vectors and is not supported",
            )
        if kind != "Pooling":
            continue
        modes = _modes(read_object(folder / Path(str(module.get("path"))).name / "config.json"))
        if len(modes) != 1 or modes[0] not in _POOLINGS:
            given = " and ".join(modes) or "nothing"
            return pooling, normalizes, f"this model pools by {given}, which is not supported"
        if modes[0] in _OTHER_LENGTHS and not normalizes:
            return pooling, normalizes, f"this model pools by {modes[0]} and does not normalize, which is not supported"
        pooling = _POOLINGS[modes[0]]
    return pooling, normalizes, None


def _modes(config: Mapping[str, Any]) -> list[str]:
    """The ways of pooling that a module's config asks for. Older configs have a switch for each, newer ones a name."""
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
    switches = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return [name.removeprefix("pooling_mode_") for name in switches]


def _prompts(folder: Path, model_config: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """The prompts of the folder, of which a line at start tells, and the name of that before every text.

    Those of Jina's tasks stand in `config.json` as well.
    """
    config = read_object(folder / SETTINGS)
    default = config.get("default_prompt_name")
    prompts = _texts(model_config.get("task_instructions")) | _texts(config.get("prompts"))
    default = default if default in prompts else None
    if names := [name for name, text in prompts.items() if text]:
        always = "" if default is None else f"; {default!r} is put before every text that names none"
        logger.info("embeddings: prompt_name may be %s%s", " or ".join(map(repr, names)), always)
    return prompts, default


def _texts(given: Any) -> dict[str, str]:
    """The texts of an object by their names; none where it is no object."""
    return {name: text for name, text in given.items() if isinstance(text, str)} if isinstance(given, dict) else {}
