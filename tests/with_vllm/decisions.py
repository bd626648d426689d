"""Runs in the environment of vLLM: what ATOM does for each of many configurations, as JSON, without an engine.

usage: decisions.py CASES OUTPUT      CASES is a JSON file with a list of keywords of vLLM's ``EngineArgs``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DEFAULTS = {"dtype": "float32", "max_model_len": 256, "skip_tokenizer_init": True}


def decision(arguments: dict[str, Any]) -> dict[str, str | None]:
    """Reasons of a `Decision`, or vLLM's own refusal."""
    from vllm.engine.arg_utils import EngineArgs

    from atom_vllm.decisions import decide

    try:
        decided = decide(EngineArgs(**(DEFAULTS | arguments)).create_engine_config())
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {"model": decided.model_reason, "attention": decided.attention_reason}


def main() -> None:
    """See the module's docstring."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([decision(case) for case in cases]))


if __name__ == "__main__":
    main()
