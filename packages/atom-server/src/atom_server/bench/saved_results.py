"""Results of runs as files: the keys of `vllm bench serve`, and the records of the PyTorch benchmark format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atom_server.bench.outcome import Outcome

_PYTORCH_METRICS = tuple(
    f"{kind}_{name}_ms" for name in ("ttft", "tpot", "itl") for kind in ("median", "mean", "std", "p99")
)


def details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What `--save-detailed` adds: each request by itself, in order of sending; times are in seconds."""
    return {
        "input_lens": [outcome.num_input_tokens for outcome in outcomes],
        "output_lens": [outcome.num_output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.gaps for outcome in outcomes],
        "generated_texts": ["".join(outcome.pieces) for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def save_json(path: Path, content: Any) -> Path:
    """Write it, and make the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def pytorch_records(result: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A record for each metric, as the dashboard of PyTorch's benchmarks reads them.

    Args:
        settings: the flags of the run.
    """
    left_out = {*_PYTORCH_METRICS, "ttfts", "itls", "generated_texts", "errors"}
    about = {name: value for name, value in result.items() if name not in left_out}
    return [
        {
            "benchmark": {"name": "ATOM benchmark", "extra_info": {"args": dict(settings)}},
            "model": {"name": result["model_id"]},
            "metric": {"name": name, "benchmark_values": [result[name]], "extra_info": about},
        }
        for name in _PYTORCH_METRICS
        if name in result
    ]
