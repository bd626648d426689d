"""What a server is at work on: every request that has not ended, the oldest first. Never any text."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from atom_core import EngineDeadError
from atom_core.messages import RequestState
from atom_server.request_log import PROBES, RequestRecord
from atom_server.state import ServerState

# An engine in a long step answers late, and then these numbers matter most.
ENGINE_SECONDS = 1.0


async def open_work(state: ServerState, asking: RequestRecord) -> dict[str, Any]:
    """What is being generated, with ages, phases and tokens, and requests that have not got so far.

    Args:
        asking: the request that wants to know; it is left out.

    Returns ``engine`` ("works", "paused", or why it tells no phases), ``requests`` and ``not_generating``.
    """
    engine, states = await _engine_states(state)
    generating = sorted(state.active, key=lambda generation: generation.submitted)
    known = {generation.id for generation in generating}
    others = [
        record
        for record in state.open_requests
        if record is not asking and record.path not in PROBES and record.answer_id not in known
    ]
    return {
        "engine": engine,
        "requests": [generation.describe(states) for generation in generating],
        "not_generating": [_described(record) for record in sorted(others, key=lambda record: record.begun)],
    }


async def _engine_states(state: ServerState) -> tuple[str, dict[str, list[RequestState]]]:
    states: dict[str, list[RequestState]] = defaultdict(list)
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            for entry in await state.engine.control.request_states():
                states[entry.caller_id].append(entry)
    except TimeoutError:
        return f"has not answered within {ENGINE_SECONDS:g} s, so that no phases are known", states
    except EngineDeadError as error:
        return f"is dead: {error}", states
    return "paused" if state.engine.control.is_paused else "works", states


def _described(record: RequestRecord) -> dict[str, Any]:
    """A request that is read, templated, tokenized or compiled, or whose answer is being written."""
    return {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path,
        "age_s": round(time.monotonic() - record.begun, 3),
        "phase": "answering" if record.status or record.answer_id else "preparing",
    }
