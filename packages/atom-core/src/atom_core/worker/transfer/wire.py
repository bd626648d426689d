"""What two engines say to each other when blocks travel: frames of a header and raw bytes. Never pickle.

A frame is the lengths of both as two little-endian uint32, a checksum of the header as uint64, the header in
MessagePack, and the bytes. The fetching side
begins with `Hello`, is answered by `Welcome`, and asks by `Fetch`; `Pages` come, and each is answered by `Received`.
`Refused` ends all of it. Where there is a secret, both prove that they know it, over the numbers that both have drawn.

`Fetch` may offer a window, memory that the other side can fill by itself. Its bytes are not in the frames then: frames
take turns in its parts, and one is used again when it was `Received`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import xxhash

from atom_core.proved_sockets import proof, receive, receive_into, send_all

VERSION = 2
MAX_HEADER = 1 << 20
# Bytes of pages in a frame, unless a single page is larger.
FRAME_BYTES = 8 << 20
# Frames that a window has room for: one is filled while the other goes to the cache.
NUM_SLOTS = 2
_START = struct.Struct("<IIQ")


class TransferError(Exception):
    """Why a transfer cannot go on, in words."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first word of the side that fetches; `nonce` is drawn anew each time."""

    version: int
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The answer: another drawn number, and the proof that this side knows the secret."""

    nonce: bytes
    proof: bytes


class SharedOffer(msgspec.Struct, frozen=True, tag=True):
    """A window in memory of this machine: a descriptor of a process. See `SharedMemory`."""

    process: int
    descriptor: int


class NixlOffer(msgspec.Struct, frozen=True, tag=True):
    """No window: this side reads pages where they are. See `NixlMemory`."""


Offer = SharedOffer | NixlOffer


class NixlPages(msgspec.Struct, frozen=True):
    """Where pages are to be read: what NIXL says of the process that has them, and the address of each."""

    agent: bytes
    addresses: list[int]


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Asks for blocks of a prompt, by their positions; none where it is not needed.

    `proof` is that of the fetching side; `layout` says what its pages consist of, by the name of each fact; `window` is
    where they may be put.
    """

    proof: bytes
    layout: dict[str, str]
    engine_id: str
    key: str
    digest: bytes
    positions: list[int]
    window: Offer | None = None


class Pages(msgspec.Struct, frozen=True, tag=True):
    """The next so many pages, whose bytes follow, are in the window, or are to be read from `there`.

    `checksum` is that of all of them.
    """

    count: int
    checksum: bytes
    there: NixlPages | None = None


class Received(msgspec.Struct, frozen=True, tag=True):
    """The pages of one more frame are there, and right."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Nothing comes."""

    reason: str


Message = Hello | Welcome | Fetch | Pages | Received | Refused
_Expected = TypeVar("_Expected", bound=Message)
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def proof_of(secret: bytes, side: bytes, hello: Hello, nonce: bytes) -> bytes:
    """That a side knows the secret; empty without one."""
    if not secret:
        return b""
    return proof(secret, side, hello.nonce + nonce)


def pages_in_frame(page_bytes: int) -> int:
    """Pages that come in one frame, if so many are left."""
    return max(FRAME_BYTES // page_bytes, 1)


def window_shape(num_pages: int, page_bytes: int) -> tuple[int, int]:
    """That of a window for so many pages."""
    return min(num_pages, NUM_SLOTS * pages_in_frame(page_bytes)), page_bytes


def frames_of(num_pages: int, page_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Which pages each frame has, and where in a window they are put."""
    count = pages_in_frame(page_bytes)
    for start in range(0, num_pages, count):
        size, first = min(count, num_pages - start), start % (NUM_SLOTS * count)
        yield slice(start, start + size), slice(first, first + size)


def checksum_of(pages: Iterable[np.ndarray]) -> bytes:
    """By which a damaged frame is found out."""
    checksum = xxhash.xxh3_128()
    for page in pages:
        checksum.update(page.data)
    return checksum.digest()


class Channel:
    """A connection. Every frame has to come, or to go, within `timeout` seconds.

    Raises:
        TransferError: the peer says something else than is expected, or refuses.
        OSError: the connection has ended, or the time is up.
    """

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        self._socket, self._timeout = connection, timeout
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message, payload: Sequence[memoryview] = ()) -> None:
        """Send a frame; the bytes are not copied."""
        header = _ENCODER.encode(message)
        if len(header) > MAX_HEADER:
            raise TransferError(f"a header of {len(header)} bytes is longer than {MAX_HEADER}")
        until = time.monotonic() + self._timeout
        num_bytes = sum(part.nbytes for part in payload)
        start = _START.pack(len(header), num_bytes, xxhash.xxh3_64_intdigest(header))
        for part in (memoryview(start + header), *payload):
            send_all(self._socket, part, until)

    def receive(self, payload: memoryview | None = None) -> Message:
        """The next header, and its bytes into `payload`, as many as there are."""
        until = time.monotonic() + self._timeout
        header_bytes, num_bytes, checksum = _START.unpack(receive(self._socket, _START.size, until))
        room = 0 if payload is None else payload.nbytes
        if header_bytes > MAX_HEADER or num_bytes > room:
            raise TransferError(
                f"a frame of {header_bytes} + {num_bytes} bytes came; it may have {MAX_HEADER} + {room}"
            )
        header = receive(self._socket, header_bytes, until)
        if xxhash.xxh3_64_intdigest(header) != checksum:
            raise TransferError("a header came that is damaged")
        if payload is not None and num_bytes:
            receive_into(self._socket, payload[:num_bytes], until)
        try:
            message = _DECODER.decode(header)
        except msgspec.DecodeError as error:
            raise TransferError(f"a header came that says nothing: {error}") from None
        if isinstance(message, Refused):
            raise TransferError(message.reason)
        return message

    def expect(self, kind: type[_Expected], payload: memoryview | None = None) -> _Expected:
        """The next message, which must be of this kind; see `receive`."""
        message = self.receive(payload)
        if not isinstance(message, kind):
            raise TransferError(f"the peer says {type(message).__name__}, and {kind.__name__} is expected")
        return message

    def close(self) -> None:
        """End the connection, whoever waits for it."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
