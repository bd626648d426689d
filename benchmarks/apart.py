"""Prefill apart from decode over a link of a known rate and delay, beside one engine: first tokens, tokens/s.

At the end the prefill server and then the decode server are killed while streams run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables
from benchmarks.client_process import ClientProcess
from benchmarks.http_overhead import PATHS, everyday_words, stream_body
from benchmarks.server_process import Server, ServerProcess, free_port
from benchmarks.shaped_link import LinkError, ShapedLink

PORT, TRANSFER_PORT = 8001, 14579
# Seconds of streams after which a server is killed: of several prompts some are computed, and others on their way.
KILLED_AFTER = 0.6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks apart`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4], help="at once")
    parser.add_argument("--context", type=int, default=512, help="words of each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of each stream")
    parser.add_argument("--turns", type=int, default=3, help="loads of each side")
    parser.add_argument("--gbit", type=float, default=1.0, help="of the link, in a second")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of the link, in each direction")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON; 1 where texts differ."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    path = machine.model_path(options.model)
    with contextlib.ExitStack() as running:
        try:
            link = ShapedLink(options.gbit * 1e9, options.delay_ms / 1e3)
        except LinkError as error:
            print(error, file=sys.stderr)
            return 2
        running.callback(link.close)
        link.enter(1)  # all but the prefill server, clients too, is at this end
        sides, servers = _start(path, link, options, running)
        client = ClientProcess()
        running.callback(client.close)
        pids = [pid for server in servers for pid in server.pids]
        interference = machine.Interference([client.pid, link.pid, *pids])
        results = [_measure(streams, sides, client, options=options) for streams in options.streams]
        others = interference.share()
        deaths = _deaths(sides, dict(zip(("prefill", "decode"), servers, strict=False)), options)
    names = ("model", "dtype", "threads", "context", "tokens", "turns", "gbit", "delay_ms")
    settings = documents.flags_of(options, *names)
    document = documents.document_of("apart", options, settings, idle=idle, others=[others], results=results)
    document["deaths"] = deaths
    print(tables.apart_table(document))
    report.save_unless_doubtful(document, options)
    return 0 if all(result["same_text"] for result in (*results, *deaths)) else 1


def _start(
    path: Path, link: ShapedLink, options: argparse.Namespace, running: contextlib.ExitStack
) -> tuple[dict[str, int], list[ServerProcess]]:
    """The ports of both sides, and all their servers."""
    secret = Path(running.enter_context(tempfile.TemporaryDirectory())) / "secret"
    secret.write_text(random.SystemRandom().randbytes(16).hex())
    config = {
        "kv_connector": "TcpConnector",
        "kv_ip": link.addresses[0],
        "kv_port": TRANSFER_PORT,
        # Both servers are on this machine: what is measured is the link.
        "kv_connector_extra_config": {"secret_file": str(secret), "shared_memory": False},
    }

    def flags(role: str | None = None) -> list[str]:
        given = _flags(options)
        return given if role is None else [*given, "--kv-transfer-config", json.dumps(config | {"kv_role": role})]

    def keep(server: ServerProcess) -> ServerProcess:
        running.callback(server.close)
        return server

    far = [*link.command_in(0), sys.executable, "-m", "atom_server", "serve", "--host", link.addresses[0]]
    place = ["--model", str(path), "--server-port", str(PORT), "--log-level", "warning"]
    prefill = keep(ServerProcess([*far, *place, *flags("kv_producer")], PORT, host=link.addresses[0]))
    decode, alone = keep(Server(path, flags("kv_consumer"))), keep(Server(path, flags()))
    port = free_port()
    urls = ["--prefill", f"http://{link.addresses[0]}:{PORT}", "--decode", f"http://127.0.0.1:{decode.port}"]
    command = [sys.executable, "-m", "atom_server", "route", "--port", str(port), "--log-level", "warning", *urls]
    front = keep(ServerProcess(command, port, ready="/health"))
    return {"one engine": alone.port, "apart": front.port}, [prefill, decode, alone, front]


def _measure(
    streams: int, sides: dict[str, int], client: ClientProcess, *, options: argparse.Namespace
) -> dict[str, Any]:
    """First tokens and tokens a second of whole loads, by side, and whether the texts are the same."""
    source = random.Random(streams)
    times: dict[str, list[list[list[float]]]] = {name: [] for name in sides}
    begun: dict[str, list[float]] = {name: [] for name in sides}
    is_same = True
    for turn in range(options.turns + 1):
        print(f"{streams} streams, turn {turn} ...", file=sys.stderr)
        prompts = [everyday_words(source, options.context) for _ in range(streams)]
        bodies = [stream_body("completions", prompt, options.tokens) for prompt in prompts]
        for name, port in sides.items():
            started = time.perf_counter()
            arrivals = client.arrivals(port, PATHS["completions"], bodies)
            if turn:  # the first one warms up
                times[name].append(arrivals)
                begun[name].append(started)
        texts = [[_text(port, prompt, options.tokens) for prompt in prompts] for port in sides.values()]
        is_same = is_same and texts[0] == texts[1]
    summaries = {name: _summary(times[name], begun[name]) for name in sides}
    return {"streams": streams, "sides": summaries, "same_text": is_same}


def _summary(loads: list[list[list[float]]], begun: list[float]) -> dict[str, float]:
    """All processes of a machine have one clock behind `time.perf_counter`."""
    first = [stream[0] - start for streams, start in zip(loads, begun, strict=True) for stream in streams]
    rates = [
        sum(map(len, streams)) / (max(stream[-1] for stream in streams) - start)
        for streams, start in zip(loads, begun, strict=True)
    ]
    gaps = [after - before for load in loads for stream in load for before, after in itertools.pairwise(stream)]
    return {
        "ttft_ms": round(statistics.median(first) * 1e3, 1),
        "tokens_per_s": round(statistics.median(rates), 1),
        "longest_gap_ms": round(max(gaps, default=0.0) * 1e3, 1),
    }


def _deaths(
    sides: dict[str, int], servers: dict[str, ServerProcess], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """How streams end whose server is killed: those that have a text have the one of one engine.

    Raises:
        TimeoutError: a stream hangs.
    """
    source, found = random.Random(0), []
    for name, server in servers.items():
        print(f"the {name} server is killed ...", file=sys.stderr)
        prompts = [everyday_words(source, options.context) for _ in range(max(options.streams))]
        expected = [_text(sides["one engine"], prompt, options.tokens) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as streams:
            texts = [streams.submit(_text_if_any, sides["apart"], prompt, options.tokens) for prompt in prompts]
            time.sleep(KILLED_AFTER)
            killed = time.perf_counter()
            server.kill()
            ends = [text.result() for text in texts]
        same = [end == text for end, text in zip(ends, expected, strict=True) if end is not None]
        found.append(
            {
                "killed": name,
                "streams": len(prompts),
                "answered": len(same),
                "same_text": all(same),
                "ended_after_s": round(time.perf_counter() - killed, 2),
            }
        )
    return found


def _text_if_any(port: int, prompt: str, num_tokens: int) -> str | None:
    """None where the server answers with an error."""
    try:
        return _text(port, prompt, num_tokens)
    except urllib.error.HTTPError:
        return None


def _text(port: int, prompt: str, num_tokens: int) -> str:
    body = stream_body("completions", prompt, num_tokens) | {"stream": False}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{PATHS['completions']}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["text"]


def _flags(options: argparse.Namespace) -> list[str]:
    flags = {
        "--dtype": options.dtype,
        "--num-threads": options.threads,
        "--max-model-len": 2 * options.context + options.tokens + 64,
        "--max-num-seqs": max(options.streams),
    }
    return [str(part) for pair in flags.items() for part in pair]
