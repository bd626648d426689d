"""`while_connected`: work in the caller's own task, which ends with its client and leaves the task as it was."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from atom_server.connections.disconnect import while_connected


class Client:
    """Says nothing until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.num_asked = 0

    async def receive(self):
        self.num_asked += 1
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_what_need_not_wait_is_done_at_once_in_the_callers_task():
    client, others = Client(), []
    asyncio.get_running_loop().call_soon(others.append, "ran")

    async def work():
        return asyncio.current_task()

    assert await while_connected(client.receive, work()) is asyncio.current_task()
    assert others == []
    await asyncio.sleep(0)
    assert client.num_asked == 0


async def test_a_client_that_leaves_ends_the_work_and_the_task_can_go_on():
    client, ended = Client(), []

    async def work():
        try:
            client.left.set()
            await asyncio.sleep(1000)
        finally:
            ended.append("work")

    with pytest.raises(ClientDisconnect):
        await while_connected(client.receive, work())
    assert ended == ["work"]
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_whoever_else_cancels_the_task_ends_it_also_while_the_client_leaves():
    client = Client()
    for leaves in (False, True):
        waits = asyncio.ensure_future(while_connected(client.receive, asyncio.sleep(1000)))
        await asyncio.sleep(0)
        if leaves:
            client.left.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits


async def test_a_fault_of_the_work_is_the_callers():
    async def work():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await while_connected(Client().receive, work())


async def test_a_client_that_leaves_as_the_work_ends_ends_nothing_that_the_task_does_next():
    client, may_end = Client(), asyncio.Event()

    def leave_and_end() -> None:
        client.left.set()
        may_end.set()

    asyncio.get_running_loop().call_later(0.01, leave_and_end)
    await while_connected(client.receive, may_end.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(ClientDisconnect):
        await while_connected(client.receive, asyncio.sleep(1000))
