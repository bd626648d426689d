"""Writes what `atom plan` prints into the pages of `docs/recipes`.

PYTHONPATH=tests/support python tools/recipe_plans.py
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from atom_server.cli.main import main
from published_catalog import CHECKPOINTS
from published_configs import write_published_config

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "recipes"
_BEGIN, _END = "<!-- plan: begin (tools/recipe_plans.py) -->\n", "<!-- plan: end -->\n"
# The model of each page, the config that is kept of it, and the flags.
PLANS = {
    "deepseek-r1": ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1", "--on MI300X --kv-cache-dtype fp8"),
    "qwen3-235b": (
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
        "Qwen/Qwen3-235B-A22B-FP8",
        "--on MI300X --enable-expert-parallel --kv-cache-dtype fp8",
    ),
    "kimi-k2-thinking": (
        "amd/Kimi-K2-Thinking-MXFP4",
        "amd/Kimi-K2-Thinking-MXFP4",
        "--on MI355X --kv-cache-dtype fp8",
    ),
    "glm-5": ("zai-org/GLM-5-FP8", "glm-5", "--on MI300X --weights fp8 --kv-cache-dtype fp8"),
    "gpt-oss": ("openai/gpt-oss-120b", "openai/gpt-oss-120b", "--on MI300X"),
    "qwen3-next": ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b", "--on MI300X"),
}


def page(name: str) -> str:
    """The page with its plan."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    model, _, flags = PLANS[name]
    plan = f"```console\n$ atom plan --model {model} {flags}\n{_printed(name)}```\n"
    return f"{before}{_BEGIN}\n{plan}\n{_END}{rest.partition(_END)[2]}"


def _printed(name: str) -> str:
    model, config, flags = PLANS[name]
    with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(io.StringIO()) as printed:
        folder = Path(made)
        if config in CHECKPOINTS:
            CHECKPOINTS[config].write_config(folder)
        else:
            write_published_config(config, folder)
        if main(["plan", "--model", made, *flags.split()]) != 0:
            raise SystemExit(f"{model} does not fit any of {flags}")
    return printed.getvalue().replace(made, model)


def write() -> None:
    """Write every page anew."""
    for name in PLANS:
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
        print(f"wrote {FOLDER / name}.md")


if __name__ == "__main__":
    write()
