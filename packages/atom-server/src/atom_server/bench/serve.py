"""A run: the workload is sent with at most so many requests at once, and every stream is timed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from tqdm import tqdm

from atom_server.bench.backends.backend import Ask, Backend
from atom_server.bench.client import Client
from atom_server.bench.outcome import BenchError, Outcome
from atom_server.bench.workload import Workload
from atom_server.connections.descriptors import connections_that_fit

_REFRESH_S = 0.5


async def run_workload(
    client: Client, workload: Workload, backend: Backend, *, path: str, max_concurrency: int | None, profile: bool
) -> tuple[Sequence[Outcome], float]:
    """Send everything; the outcomes in order of sending, and the seconds that it took.

    Raises:
        BenchError: a first request, which goes alone to see that the server works, failed.
    """
    if error := (await client.stream(backend, path, workload.trial)).error:
        raise BenchError(f"the server does not answer this workload: {error}")
    at_once = connections_that_fit(min(max_concurrency or len(workload.asks), len(workload.asks)))
    if profile:
        await client.ask("POST", "/start_profile")
    places = asyncio.Semaphore(at_once)
    outcomes: list[Outcome] = []
    started = time.perf_counter()
    async with _live_line(outcomes, len(workload.asks), started) as bar:

        async def send(ask: Ask) -> Outcome:
            async with places:
                sent = time.perf_counter() - started
                outcome = await client.stream(backend, path, ask)
            outcome.sent = sent
            outcomes.append(outcome)
            bar.update()
            return outcome

        tasks: list[asyncio.Task[Outcome]] = []
        for ask, moment in zip(workload.asks, workload.moments(), strict=True):
            if (wait := started + moment - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(send(ask)))
        in_order = await asyncio.gather(*tasks)
    seconds = time.perf_counter() - started
    if profile:
        await client.ask("POST", "/stop_profile")
    return in_order, seconds


@contextlib.asynccontextmanager
async def _live_line(outcomes: Sequence[Outcome], total: int, started: float) -> AsyncIterator[tqdm]:
    """A bar with what is done so far, written anew twice a second."""
    with tqdm(total=total, unit="req", desc="sending") as bar:

        async def refresh() -> None:
            while True:
                await asyncio.sleep(_REFRESH_S)
                bar.set_postfix_str(live_text(outcomes, time.perf_counter() - started))

        task = asyncio.create_task(refresh())
        try:
            yield bar
        finally:
            task.cancel()


def live_text(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Rate of output tokens and mean time to the first token, of what is finished."""
    done = [outcome for outcome in outcomes if not outcome.error]
    if not done:
        return f"{len(outcomes)} failed" if outcomes else ""
    rate = sum(outcome.num_output_tokens for outcome in done) / seconds
    first = 1e3 * sum(outcome.ttft for outcome in done) / len(done)
    failed = f", {len(outcomes) - len(done)} failed" if len(done) < len(outcomes) else ""
    return f"{rate:.0f} output tokens/s, first token {first:.0f} ms{failed}"
