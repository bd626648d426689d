"""`plan_graphs`: what an engine captures, by the mode that its config asks for and what its attention allows."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig
from atom_core.worker.graphs.shapes import MOST_WHOLE, GraphShape, GraphShapes, draft_shapes, prompt_sizes
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.vision.tower_graphs import tower_sizes


@dataclass(frozen=True)
class GraphsToCapture:
    """What is captured.

    Attributes:
        shapes: the shapes of whole steps.
        piece_sizes: tokens of the steps that are captured between attention layers.
        tower_rows: rows of the tower's steps that are captured: patches of all pictures that are encoded together.
        choices: a line for each value that was chosen for the user.
    """

    shapes: GraphShapes = field(default_factory=GraphShapes)
    piece_sizes: tuple[int, ...] = ()
    tower_rows: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest captured step; 0 if none is captured."""
        return max([*(shape.num_tokens for shape in self.shapes.all), *self.piece_sizes], default=0)


def plan_graphs(config: EngineConfig, model: EngineModel, weights_per_token: int) -> GraphsToCapture:
    """What to capture for a `model` that multiplies each token by so many weights.

    Raises:
        ConfigError: whole steps were asked for, and attention cannot be captured.
    """
    mode, decode_sizes = config.compile.graph_mode, config.compile.capture_sizes
    if mode == "none":
        return GraphsToCapture()
    tokens = prompt_sizes(weights_per_token, config.scheduler.max_num_batched_tokens)
    choices: list[str] = []
    reason = None if mode == "piecewise" else model.why_not_capturable()
    if reason is not None and config.compile.graphs_required:
        raise ConfigError(f"whole steps cannot be captured: {reason}; ask for cudagraph_mode piecewise")
    if reason is not None:
        mode = "piecewise"
        choices.append(f"cudagraph_mode = piecewise: {reason}")
    # Whole, decodes beside prompts are computed as prompts of one token, which is not invariant.
    allowed = model.captures_prompts and not config.compile.batch_invariant
    whole = tuple(size for size in tokens if size <= MOST_WHOLE) if allowed else ()
    if mode == "piecewise":
        shapes, pieces = GraphShapes(), tuple(sorted({*decode_sizes, *tokens}))
    else:
        shapes = GraphShapes(decode_sizes, whole, draft_shapes=_draft_shapes(config))
        pieces = () if mode == "full" else tokens
    if captured := tokens if pieces else whole:
        choices.append(f"prompts of up to {max(captured)} tokens are captured too: launching them may take longer")
    return GraphsToCapture(shapes, pieces, _tower_rows(config, model), tuple(choices))


def _tower_rows(config: EngineConfig, model: EngineModel) -> tuple[int, ...]:
    tower = model.tower
    if tower is None or not tower.capturable:
        return ()
    return tower_sizes(tower, config.scheduler.max_num_image_tokens * tower.rows_of_unit)


def _draft_shapes(config: EngineConfig) -> tuple[GraphShape, ...]:
    """Where a model drafts, steps with drafts are the rule."""
    speculation = config.speculation
    if speculation is None or not speculation.is_by_model:
        return ()
    most = min(config.scheduler.max_num_batched_tokens, config.max_num_samples)
    return draft_shapes(config.compile.capture_sizes, speculation.num_tokens, most)
