"""A run: the workload is sent with at most so many requests at once, and every stream is timed."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence

from tqdm import tqdm

from atom_server.bench.client import BenchError, Client, Outcome
from atom_server.bench.workload import Workload


async def run_workload(
    client: Client, workload: Workload, *, path: str, model: str | None, max_concurrency: int | None, profile: bool
) -> tuple[Sequence[Outcome], float]:
    """Send everything; the outcomes in order of sending, and the seconds that it took.

    Raises:
        BenchError: a first request, which goes alone to see that the server works, failed.
    """
    bodies = workload.bodies(model)
    # Another prompt than those that are measured: the server may remember what it has seen.
    [trial] = dataclasses.replace(workload, num_prompts=1, seed=workload.seed + 1).bodies(model)
    if error := (await client.stream(path, trial)).error:
        raise BenchError(f"the server does not answer this workload: {error}")
    if profile:
        await client.ask("POST", "/start_profile")
    places = asyncio.Semaphore(max_concurrency or len(bodies))
    started = time.perf_counter()
    with tqdm(total=len(bodies), unit="req", desc="sending") as bar:

        async def send(body: dict[str, object]) -> Outcome:
            async with places:
                sent = time.perf_counter() - started
                outcome = await client.stream(path, body)
            outcome.sent = sent
            bar.update()
            return outcome

        tasks: list[asyncio.Task[Outcome]] = []
        delays = workload.delays()
        for body in bodies:
            tasks.append(asyncio.create_task(send(body)))
            if (delay := next(delays, 0.0)) > 0:
                await asyncio.sleep(delay)
        outcomes = await asyncio.gather(*tasks)
    seconds = time.perf_counter() - started
    if profile:
        await client.ask("POST", "/stop_profile")
    return outcomes, seconds
