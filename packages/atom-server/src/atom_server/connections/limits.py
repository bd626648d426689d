"""`ConnectionLimits`: what one client may send, and how long it may take, before any route looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from atom_server.options import ServerOptions

_LONGEST_LINGER_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """The limits of each connection.

    Attributes:
        head_bytes: the most bytes of the request line with all headers; trailers may have as many.
        num_fields: headers and trailers of a request together.
        num_pipelined: requests that may follow one whose answer is on its way.
        request_s: time for the headers of a request, and again for its body. A client that reads nothing of its answer
            for so long is cut off.
        idle_s: time between an answer and the next request.
        linger_s, linger_bytes: how long and how much is read and thrown away after an answer to an unfinished request,
            so that the client gets to see the answer.
    """

    head_bytes: int = 64 * 1024
    num_fields: int = 128
    num_pipelined: int = 16
    request_s: float = 30.0
    idle_s: float = 5.0
    linger_s: float = _LONGEST_LINGER_S
    linger_bytes: int = 32 * 2**20

    @classmethod
    def of(cls, options: ServerOptions) -> ConnectionLimits:
        """The limits that `options` ask for."""
        return cls(
            request_s=options.timeout_request,
            idle_s=options.timeout_keep_alive,
            linger_s=min(_LONGEST_LINGER_S, options.timeout_request),
        )
