"""`KVEventPublisher`: sends events over ZMQ, numbered, and sends what subscribers missed again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

import msgspec
import zmq

from atom_core.kv_events.config import KVEventsConfig, address_of
from atom_core.kv_events.schema import KVEvent, KVEventBatch

_END = (-1).to_bytes(8, "big", signed=True)
_BOUND = ("*", "::", "127.0.0.1", "localhost")


class KVEventPublisher:
    """A message is the topic, its number as 8 bytes with the highest first, and a `KVEventBatch`.

    A subscriber that finds a gap sends the first number that it misses to the replay address; it gets all batches from
    there on that are still kept, each as a number and a batch, and at last the number -1.

    Args:
        config: where to.
        rank: the number of this engine.

    Raises:
        OSError: an address cannot be had.
    """

    def __init__(self, config: KVEventsConfig, rank: int = 0) -> None:
        self._rank, self._topic = rank, config.topic.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._context.linger = 0
        self._replay: threading.Thread | None = None
        try:
            self._socket = self._context.socket(zmq.PUB)
            self._socket.set_hwm(config.hwm)
            _open(self._socket, address_of(config.endpoint or "", rank))
            if config.replay_endpoint is not None:
                router = self._context.socket(zmq.ROUTER)
                _open(router, address_of(config.replay_endpoint, rank))
                self._replay = threading.Thread(target=self._send_again, args=(router,), daemon=True, name="kv-replay")
                self._replay.start()
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def publish(self, events: list[KVEvent]) -> None:
        """Send the events of a step, if there are any; never waits for anybody. One thread calls this at a time."""
        if not events:
            return
        batch = self._encoder.encode(KVEventBatch(time.time(), events, self._rank))
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._kept.append((number, batch))
        self._socket.send_multipart((self._topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        """Let go of the addresses."""
        self._socket.close(linger=0)
        self._context.term()  # ends the replay's thread too
        if self._replay is not None:
            self._replay.join()

    def _send_again(self, router: zmq.Socket) -> None:
        with contextlib.suppress(zmq.ContextTerminated), contextlib.closing(router):
            while True:
                frames = router.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue  # it is no question
                client, first = frames[0], int.from_bytes(frames[2], "big")
                with self._lock:
                    missed = [(number, batch) for number, batch in self._kept if number >= first]
                for number, batch in missed:
                    router.send_multipart((client, b"", number.to_bytes(8, "big"), batch))
                router.send_multipart((client, b"", _END, b""))


def _open(socket: zmq.Socket, address: str) -> None:
    """Bind or connect, as vLLM does, but for loopback addresses, which are bound."""
    is_bound = not address.startswith("tcp") or any(part in address for part in _BOUND)
    try:
        (socket.bind if is_bound else socket.connect)(address)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"{address} cannot be used: {error.strerror}") from None
