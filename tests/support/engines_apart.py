"""Two engines in this process, of which one computes prompts and the other goes on from them."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from atom_core import LLMEngine, SamplingParams
from atom_core.messages import KVTransferParams, KVTransferStats

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SETTINGS: dict[str, Any] = {"num_kv_blocks": 64, "max_model_len": 256, "max_num_batched_tokens": 64}
KEEP = KVTransferParams(do_remote_decode=True)


def draw_tokens(seed: int, num_tokens: int = 100) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, 200) for _ in range(num_tokens)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def stepping(engine: LLMEngine) -> Iterator[None]:
    """The engine's loop goes on in a thread, as that of a server does."""
    core: Any = engine._core
    is_over = threading.Event()

    def loop() -> None:
        while core.has_unfinished() and not is_over.is_set():
            core.step()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Apart(NamedTuple):
    """An engine that computes prompts, and one that goes on from them."""

    prefill: LLMEngine
    decode: LLMEngine

    def compute(self, prompt: list[int], params: SamplingParams = GREEDY) -> KVTransferParams | None:
        """The prompt in the first engine: what the second is told."""
        one = SamplingParams(max_tokens=1, temperature=params.temperature, kv_transfer_params=KEEP)
        (output,) = self.prefill.generate([prompt], one, use_tqdm=False)
        return output.get("kv_transfer_params")

    def go_on(
        self, prompt: list[int], told: KVTransferParams | None, params: SamplingParams = GREEDY
    ) -> list[dict[str, Any]]:
        with stepping(self.prefill):
            return self.decode.generate([prompt], replace(params, kv_transfer_params=told), use_tqdm=False)

    def run(self, prompt: list[int], params: SamplingParams = GREEDY) -> list[dict[str, Any]]:
        return self.go_on(prompt, self.compute(prompt, params), params)


def make_apart(
    make_engine: MakeEngine,
    *model: Path,
    connector: str = "TcpConnector",
    port: int | None = None,
    buffer_bytes: int = 1 << 20,
    extra: dict[str, Any] | None = None,
    of_decode: dict[str, Any] | None = None,
    **settings: Any,
) -> Apart:
    """Engines of the same settings but for those `of_decode`; `extra` is said to both connectors."""
    port, given = port or free_port(), SETTINGS | settings
    of_both = {
        "kv_connector": connector,
        "kv_port": port,
        "kv_buffer_size": buffer_bytes,
        "kv_connector_extra_config": extra or {},
    }
    prefill = make_engine(*model, **given, kv_transfer_config=of_both | {"kv_role": "kv_producer"})
    own = {"kv_transfer_config": of_both | {"kv_role": "kv_consumer"}} | (of_decode or {})
    return Apart(prefill, make_engine(*model, **given | own))


def transfers_of(engine: LLMEngine) -> KVTransferStats:
    stats = engine.stats.kv_transfer
    assert stats is not None
    return stats


def num_kept_at_last(engine: LLMEngine, seconds: float = 20.0) -> int:
    """How many prompts `engine` keeps once word of its peer has had time to come, long before they expire."""
    deadline = time.monotonic() + seconds
    with stepping(engine):
        while (kept := transfers_of(engine).num_kept_prompts) and time.monotonic() < deadline:
            time.sleep(0.01)
    return kept
