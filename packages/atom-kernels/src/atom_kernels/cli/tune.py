"""``tune``: measures candidates on this GPU and files the best, for plans made later."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from atom_kernels.attention.mla.tuning import LATENT_ATTENTION_TUNING
from atom_kernels.attention.tuning import PAGED_ATTENTION_TUNING
from atom_kernels.linear.triton.tuning import LINEAR_TUNING
from atom_kernels.moe.tuning import MOE_EXPERTS_TUNING
from atom_kernels.platform import Platform
from atom_kernels.tuned.store import FOLDER, save_rows
from atom_kernels.tuned.tuner import Trial, Tuning, tune

TUNINGS: dict[str, Tuning] = {
    tuning.operator: tuning
    for tuning in (LINEAR_TUNING, MOE_EXPERTS_TUNING, PAGED_ATTENTION_TUNING, LATENT_ATTENTION_TUNING)
}


def run(
    names: Sequence[str],
    platform: Platform,
    *,
    models: Sequence[str] = (),
    rows: Sequence[int] = (),
    folder: Path | None = None,
) -> int:
    """Exit status: 2 where there is no GPU or no such operator or model."""
    if platform.device != "cuda":
        print(f"tune needs a GPU: {platform.name} has none", file=sys.stderr)
        return 2
    unknown = [name for name in names if name not in TUNINGS]
    if unknown:
        print(f"cannot tune {', '.join(unknown)}; these can be: {', '.join(TUNINGS)}", file=sys.stderr)
        return 2
    for tuning in (TUNINGS[name] for name in names or TUNINGS):
        problems = tuning.problems()
        unknown = [model for model in models if model not in problems]
        if unknown:
            known = ", ".join(problems)
            print(f"{tuning.operator} has no shapes of {', '.join(unknown)}; there are: {known}", file=sys.stderr)
            return 2
        for model in models or problems:
            key = tuning.key(problems[model])
            print(f"{tuning.operator} of {model}: {key}", flush=True)
            sizes = sorted(rows) or tuning.rows
            found = tune(tuning.subject(problems[model]), sizes, _print_trial)
            path = save_rows(
                tuning.operator, key, found, platform.name, folder or FOLDER, arch=platform.arch, tuned_from=sizes[0]
            )
            print(f"  written: {path}", flush=True)
    return 0


def _print_trial(trial: Trial) -> None:
    time = trial.failure or f"{trial.microseconds:.1f} us"
    print(f"  {trial.num_rows:>6} rows {trial.part:<8} {time:>12}  {json.dumps(dict(trial.config))}", flush=True)
