"""The process that measures one server: ``python -m benchmarks.gpu.served.worker SETTINGS`` (see `Session`).

It runs in our environment whatever engine it measures, since the client is ours; the server runs in its own.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.protocol import Figure
from benchmarks.gpu.served.figures import served_figures
from benchmarks.gpu.served.load import workloads
from benchmarks.gpu.served.servers import late_of, served_name, start_server, version_of
from benchmarks.gpu.served.tokenizer import write_tokenizer
from benchmarks.gpu.settings import environment_of


def main() -> None:
    """Start a server, and print a line of JSON for each figure."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    engine, model, caches = settings["engine"], Path(settings["model"]), settings["caches"]
    write_tokenizer(model)
    environment = environment_of(engine, settings["peer_path"], Path(settings["kernel_cache"]))
    # The peer's server and its engine are processes of their own, as for its users.
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    begun = time.monotonic()
    server = start_server(
        engine,
        model,
        max_model_len=settings["max_model_len"],
        settings=settings["engine_options"],
        environment=environment,
    )
    try:
        ready, port = time.monotonic() - begun, server.port
        version, label = version_of(port), settings["label"]

        def tell(figure: Figure) -> None:
            if label is not None:
                about = figure.about | {"with": label}
                figure = figure._replace(figure=f"{figure.figure}, {label}", about=about)
            print(json.dumps({"engine": engine, "version": version} | figure._asdict()), flush=True)

        about = {"kind": "served", "workload": "start", "streams": 0, "caches": caches, "what": "ready"}
        tell(Figure(f"process start to ready, caches {caches}", "s", [ready], about))
        for figure in served_figures(
            port,
            served_name(port),
            workloads(settings["sizes"]["streams"]),
            seconds=settings["sizes"]["window"],
            caches=caches,
            late=partial(late_of, port),
        ):
            tell(figure)
    finally:
        server.close()


if __name__ == "__main__":
    main()
