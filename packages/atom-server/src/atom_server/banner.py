"""The one thing to read when the server is ready: what runs, what fits, where, and how long each phase took."""

from __future__ import annotations

import contextlib
import logging

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from atom_core.engine.info import EngineInfo
from atom_core.folder_code import describe
from atom_server.connections.listen import is_loopback
from atom_server.state import ServerState

logger = logging.getLogger(__name__)


def show_banner(state: ServerState, url: str, *, seconds: float) -> None:
    """Print the banner to stderr, and a warning where anybody on the network could use this server.

    If stderr takes no more, as a file on a full disk, the server goes on without a banner.
    """
    with contextlib.suppress(OSError):
        _print_banner(state, url, Console(stderr=True), seconds=seconds)


def _print_banner(state: ServerState, url: str, console: Console, *, seconds: float) -> None:
    rows = banner_rows(state, url, seconds=seconds)
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2))
        for name, value in rows:
            grid.add_row(Text(name, style="dim"), Text(value))
        console.print(Panel.fit(grid, title="[bold]ATOM is ready[/bold]", border_style="green"))
    else:
        width = max(len(name) for name, _ in rows)
        lines = ["ATOM is ready", *(f"  {name:<{width}}  {value}" for name, value in rows)]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    warn_when_open(state, console)


def banner_rows(state: ServerState, url: str, *, seconds: float) -> list[tuple[str, str]]:
    """The banner as names and values."""
    info = state.engine.info
    phases = ", ".join(f"{name} {value:.1f}" for name, value in info.timings.items() if name != "total")
    concurrency = info.num_cache_tokens / info.max_model_len
    cache_dtype = f", {info.kv_cache_dtype}" if info.kv_cache_dtype != info.dtype else ""
    prefix = "on" if info.enable_prefix_caching else "off"
    each = " in each engine" if info.data_parallel_size > 1 else ""
    code = state.engine.code_that_ran
    return [
        ("model", f"{', '.join(state.served_names)} ({info.architecture})"),
        *([("code", describe(code))] if code is not None else ()),
        ("runs on", describe_machine(info)),
        (
            "KV cache",
            f"{info.num_blocks} blocks of {info.block_size} = {info.num_cache_tokens} tokens{cache_dtype},"
            f" prefix cache {prefix}{each}",
        ),
        (
            "limits",
            f"context {info.max_model_len} tokens, {info.max_num_seqs} requests at once"
            f" ({concurrency:.1f} of them at full context){each}",
        ),
        ("API", f"{url}/v1"),
        *([("page", f"{url}/")] if state.options.page else ()),
        ("docs", f"{url}/docs"),
        ("API key", "required" if len(state.keys) else "none"),
        ("started in", f"{seconds:.1f} s" + (f" ({phases})" if phases else "")),
    ]


def describe_machine(info: EngineInfo) -> str:
    """What an engine runs on, and how it is spread over it."""
    size, num_engines = info.tensor_parallel_size, info.data_parallel_size
    stages = info.pipeline_parallel_size
    kind = "tensor parallel, whole experts on each" if info.enable_expert_parallel else "tensor parallel"
    if info.decode_context_parallel_size > 1:
        kind += f", context shared by {info.decode_context_parallel_size}"
    of_layer = f"{size} ranks ({kind})" if size > 1 else ""
    ranks = f"{of_layer} on " if of_layer else ""
    if stages > 1:
        ranks = f"{stages} stages (pipeline parallel){f' of {of_layer}' if of_layer else ''} on "
    shared = ", experts shared" if info.enable_dp_attention else ""
    engines = f"{num_engines} engines (data parallel{shared})" if num_engines > 1 else ""
    of = (" of " if ranks else " on ") if engines else ""
    each = " each" if size * stages * num_engines > 1 else ""
    return f"{engines}{of}{ranks}{info.device} in {info.dtype}, {info.num_threads} threads{each}"


def warn_when_open(state: ServerState, console: Console) -> None:
    """Say loudly that the network can reach a server without a key."""
    options = state.options
    if len(state.keys) or options.uds is not None or is_loopback(options.host):
        return
    console.print(
        f"WARNING: listening on {options.host} without an API key: anybody who can reach this machine can use this "
        "server. Set --api-key-file or ATOM_API_KEY, or bind to 127.0.0.1; --require-key refuses to start like this.",
        style="bold red",
        highlight=False,
        soft_wrap=True,
    )
