"""The process in which one engine is measured: ``python -m benchmarks.gpu.worker SETTINGS`` (see `Session`)."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.protocol import Figure, Sizes
from benchmarks.gpu.workloads import NEVER_RIGHT, TEMPERATURE, Measurement, random_prompt


def main() -> None:
    """Run one engine and print a line of JSON for each figure, and for each scenario that failed."""
    settings = json.loads(sys.argv[1])
    if settings["scenarios"] in (["speculation"], [NEVER_RIGHT]):
        _tell_speculation(settings)
        return
    from benchmarks.gpu import engines

    side = engines.Atom if settings["engine"] == "atom" and not settings["in_vllm"] else engines.Vllm
    engine = side(
        Path(settings["model"]),
        max_model_len=settings["max_model_len"],
        prefix_caching=settings["prefix_caching"],
        parallel=engines.Parallel(settings["tensor_parallel_size"], settings["enable_expert_parallel"]),
        settings=settings["engine_options"],
    )

    def tell(**entry: Any) -> None:
        _tell(settings, engine.version, entry)

    def tell_figure(figure: Figure) -> None:
        label = settings["label"]
        named = figure if label is None else figure._replace(figure=f"{figure.figure}, {label}")
        about = figure.about if label is None else figure.about | {"with": label}
        tell(**named._replace(about=about)._asdict())

    engine.generate([random_prompt(random.Random(1), 64)], [1], 0.0)
    if "start" in settings["scenarios"]:
        caches = settings["caches"]
        seconds = time.monotonic() - settings["started"]
        about = {"kind": "start", "caches": caches}
        tell_figure(Figure(f"process start to first token, caches {caches}", "s", [seconds], about))
    scenarios = [scenario for scenario in settings["scenarios"] if scenario != "start"]
    if scenarios:
        engine.generate([random_prompt(random.Random(2), 64)] * 4, [16] * 4, TEMPERATURE)
    config = json.loads((Path(settings["model"]) / "config.json").read_text())
    measurement = Measurement(engine, Sizes(**settings["sizes"]), config)
    for scenario in scenarios:
        try:
            for figure in measurement.run([scenario]):
                tell_figure(figure)
        except Exception as error:  # the others may still work, and what is known is told
            tell(failure=f"{scenario}: {type(error).__name__}: {error}"[:500])


def _tell_speculation(settings: dict[str, Any]) -> None:
    """This scenario makes engines of its own: two of ours, which take turns, and one of the peer's in each process."""
    if settings["engine"] == "vllm":
        _tell_speculation_of_peer(settings)
        return
    from atom_core import __version__
    from benchmarks.gpu.speculation import never_right_figures, speculation_figures

    make_figures = never_right_figures if settings["scenarios"] == [NEVER_RIGHT] else speculation_figures
    figures = make_figures(
        Path(settings["model"]),
        Sizes(**settings["sizes"]),
        max_model_len=settings["max_model_len"],
        settings=settings["engine_options"],
    )
    for figure in figures:
        _tell(settings, __version__, figure._asdict())


def _tell_speculation_of_peer(settings: dict[str, Any]) -> None:
    import vllm  # pyright: ignore[reportMissingImports]

    from benchmarks.gpu.peer_speculation import peer_figures

    figures = peer_figures(
        Path(settings["model"]),
        Sizes(**settings["sizes"]),
        max_model_len=settings["max_model_len"],
        has_drafts=settings["has_drafts"],
    )
    for figure in figures:
        _tell(settings, vllm.__version__, figure._asdict())


def _tell(settings: dict[str, Any], version: str, entry: dict[str, Any]) -> None:
    print(json.dumps({"engine": settings["engine"], "version": version} | entry), flush=True)


if __name__ == "__main__":
    main()
