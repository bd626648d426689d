"""Many streams at once that are read and not looked into: they take little of the processors that the server needs."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any, NamedTuple

_END = b"data: [DONE]"


class RawStream(NamedTuple):
    """What came of a stream: the status, the number of events, and how it ended."""

    status: int
    num_events: int
    is_whole: bool


def read_streams(port: int, bodies: list[dict[str, Any]], *, apart: float) -> list[RawStream]:
    """Ask for these completions, each so many seconds after the one before, and read all to their ends."""
    _allow_descriptors(len(bodies) + 256)

    async def work() -> list[RawStream]:
        return await asyncio.gather(*(_read(port, body, place * apart) for place, body in enumerate(bodies)))

    return asyncio.run(work())


async def _read(port: int, fields: dict[str, Any], delay: float) -> RawStream:
    await asyncio.sleep(delay)
    content = json.dumps(fields | {"stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    data = bytearray()
    while part := await reader.read(2**16):
        data += part
    writer.close()
    return RawStream(int(data[9:12] or b"0"), data.count(b"data: {"), _END in data and b'"error"' not in data)


def _allow_descriptors(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))
