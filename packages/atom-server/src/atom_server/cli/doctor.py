"""`atom doctor`: what this machine has, what is installed, and what each operator runs on."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from atom_core.host_memory import available_memory, total_memory
from atom_server.cli.columns import columns
from atom_server.cli.model_impl import add_model_impl

HELP = "show what this machine has and what runs on what"
USAGE = "[--model MODEL [--quantization FORMAT]] [--no-operators]"
DESCRIPTION = """\
Show the machine, the installed versions, the caches, and which implementation each operator takes here. With --model,
show instead how each kind of the model's layers is stored, what decided it, in which format it is kept, what runs it,
and its bytes; no weight is read, and of a model that is not here only the config is downloaded."""
EXAMPLES = """\
examples:
  atom doctor
  atom doctor --no-operators    skip the list of operators, which takes a few seconds
  atom doctor --model ./my-model-fp8
  atom doctor --model ./my-model --quantization int4
"""

_OURS = ("atom-kernels", "atom-models", "atom-core", "atom-server")
_OTHERS = ("torch", "triton", "amd-aiter", "tokenizers", "safetensors", "msgspec", "pyzmq", "fastapi", "uvicorn")
_EXPLAIN_TIMEOUT_S = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to tell of."""
    parser.add_argument("--model", help="folder, .gguf file, name or Hugging Face id whose weights to tell of")
    parser.add_argument("--quantization", metavar="FORMAT", help="of weights, as for `atom serve`")
    add_model_impl(parser)
    parser.add_argument(
        "--operators",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="list every operator's implementations (default: yes)",
    )


def run(args: argparse.Namespace) -> int:
    """Print everything; 1 where the operators cannot be listed."""
    if args.model:
        _print_weights(args.model, args.quantization, args.model_impl)
        return 0
    _print_rows("machine", _machine())
    versions = [(name, _version(name)) for name in (*_OURS, *_OTHERS)]
    _print_rows("installed", [*versions, ("package atom", owner_of_atom())])
    _print_rows("models", _models())
    return _print_operators() if args.operators else 0


def _machine() -> list[tuple[str, str]]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("processor", _processor()),
        ("cores", str(cores)),
        ("memory", _memory()),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("compiler", shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "none: no native kernels"),
    ]


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory() -> str:
    total, free = total_memory(), available_memory()
    if total is None or free is None:
        return "unknown"
    return f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB available"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def owner_of_atom() -> str:
    """Whose the package named `atom` is: scripts of ROCm/ATOM import it."""
    spec = importlib.util.find_spec("atom")
    if spec is None:
        return "not installed; pip install ./packages/atom-compat brings ROCm/ATOM's names"
    file = Path(spec.origin) if spec.origin else None
    if file is not None and "atom_core" in file.read_text(encoding="utf-8", errors="replace"):
        return f"ours, {file.parent}"
    owners = metadata.packages_distributions().get("atom") or ["nobody known"]
    place = file.parent if file else "a folder without code"
    return f"NOT ours: {place}, of {', '.join(owners)}; uninstall it before atom-compat can own the name"


def _models() -> list[tuple[str, str]]:
    from atom_core.models import cached_models, models_cache_dir

    models = [(model.name, f"{model.size / 2**20:.0f} MiB, {model.path}") for model in cached_models()]
    return [
        ("kept in", str(models_cache_dir())),
        *(models or [("none yet", "`atom models pull smollm2` downloads one")]),
    ]


def _print_weights(model: str, quantization: str | None, model_impl: str) -> None:
    # Imported here: the rest goes without torch.
    from atom_core.models import choose_implementation, layer_weights, open_checkpoint, resolve_config

    checkpoint = open_checkpoint(resolve_config(model))
    implementation = choose_implementation(checkpoint, model_impl)
    found = layer_weights(checkpoint, quantization, model_impl)
    print(f"weights of {model}\n  run by {implementation.describe()}")
    for one in found:
        stored = one.stored if one.stored == one.held else f"{one.stored}, kept as {one.held}"
        print(f"\n  {one.count} x {one.name}: {one.num_bytes / 2**20:.1f} MiB")
        print(f"    stored as {stored}" + (f" ({one.rule})" if one.rule else ""))
        if one.operator:
            print(f"    {one.operator}: {', then '.join(one.implementations)}")
    print(f"\n  in all: {sum(one.num_bytes for one in found) / 2**20:.1f} MiB")


def _print_operators() -> int:
    """The report of the operators' own package, in a process of its own: this one stays without torch."""
    print("\noperators", flush=True)
    command = [sys.executable, "-m", "atom_kernels", "explain"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_EXPLAIN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"  `{' '.join(command[1:])}` took longer than {_EXPLAIN_TIMEOUT_S} s", file=sys.stderr)
        return 1
    print("\n".join("  " + line for line in done.stdout.splitlines()))
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        print(f"  the operators cannot be listed: {lines[-1]}", file=sys.stderr)
    return 1 if done.returncode else 0


def _print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    print("\n  ".join([title, *columns(rows)]), end="\n\n", flush=True)
