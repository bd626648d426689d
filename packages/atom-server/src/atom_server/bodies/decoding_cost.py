"""`DecodingCost`: how long a body will take to decode, estimated from its bytes as they come."""

from __future__ import annotations

from atom_server.errors import APIError

# The most values of a body. Decoding that many token ids takes about 30 ms, and anything else about 50 ms.
MAX_VALUES = 2**19
_FEW = 1024  # of whatever holds the values
# Each begins or follows a value. A name is made, hashed and filed: with its value it counts five times.
_VALUE_MARKS = (b",", b":", b'":', b'":', b'":', b"[", b"{")
_ESCAPES_LIKE_A_VALUE = 4
# An integer of this many digits may exceed 64 bits. Python's time to read those grows with the square of their length.
_LONG_NUMBER = b"0" * 20
_VALUES_LIKE_A_LONG_NUMBER = 8
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")


class DecodingCost:
    """Refuses a body whose decoding would hold up everyone else.

    Nothing else runs while a body is decoded. Many values, names, escapes or long numbers make that much slower than
    the size of the body tells. They are counted inside texts too, since texts are not known before decoding; a text
    with as many of them would not fit any context.
    """

    def __init__(self) -> None:
        self._values = 0.0

    def add(self, piece: bytes) -> None:
        """Count the next piece of the body.

        Raises:
            APIError: 413.
        """
        self._values += sum(map(piece.count, _VALUE_MARKS))
        self._values += piece.count(b"\\") / _ESCAPES_LIKE_A_VALUE
        self._values += piece.translate(_DIGITS_AS_ZEROS).count(_LONG_NUMBER) * _VALUES_LIKE_A_LONG_NUMBER
        if self._values > MAX_VALUES + _FEW:
            problem = f"the body holds more than {MAX_VALUES} values, names, escapes and long numbers"
            raise APIError(413, f"{problem}; send several requests")
