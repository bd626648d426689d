"""`DecodingCost` and `Floats`: how long a body will take to decode, estimated from its bytes as they come."""

from __future__ import annotations

import math

from atom_server.errors import APIError

# The most values of a body. Decoding and freeing that many takes at most some 40 ms, whatever they are.
MAX_VALUES = 2**19
_FEW = 1024  # of whatever holds the values
# No byte counts as more than four values, so that bodies of so many bytes need not be looked at.
_UNCOUNTED_BYTES = MAX_VALUES // 4
# Each begins or follows a value, and counts by what is made for it: a list, an object, a name that is hashed and filed,
# or nothing but the value behind a comma. Escapes make up texts.
_VALUES_OF_MARKS = ((b",", 1), (b'":', 4), (b"[", 3), (b"{", 2), (b"\\", 0.25))
_BLANKS = b" \t\r\n"  # may stand between a name and its colon
# Texts of other characters than ASCII are made in other ways: the short ones take three times as long, and one such
# character in a long text makes all of it four times as wide. The size of a body alone is no reason to refuse it.
_ESCAPED = b"\\u"
_BYTES_LIKE_A_VALUE = 48
_MOST_VALUES_FOR_BYTES = MAX_VALUES * 2 / 3
# An integer of this many digits may exceed 64 bits. Python's time to read those grows with the square of their length.
_LONG_NUMBER = b"0" * 20
_VALUES_LIKE_A_LONG_NUMBER = 8
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
# No route has a use for more. Each takes a microsecond or two.
MAX_FLOATS = 2**13


class DecodingCost:
    """Refuses a body whose decoding would hold up everyone else.

    Nothing else runs while a body is decoded. Many values, names, escapes or long numbers make that much slower than
    the size of the body tells. They are counted inside texts too, since texts are not known before decoding; a text
    with as many of them would not fit any context.
    """

    def __init__(self) -> None:
        self._values = 0.0
        self._num_bytes = 0
        self._is_ascii = True
        self._uncounted: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Count the next piece of the body; the first ones together, once there are so many bytes that it matters.

        Raises:
            APIError: 413.
        """
        self._num_bytes += len(piece)
        self._uncounted.append(piece)
        if self._num_bytes > _UNCOUNTED_BYTES:
            self._count(b"".join(self._uncounted))
            self._uncounted.clear()

    def _count(self, piece: bytes) -> None:
        dense = piece.translate(None, _BLANKS)
        self._values += sum(values * dense.count(mark) for mark, values in _VALUES_OF_MARKS)
        self._values += piece.translate(_DIGITS_AS_ZEROS).count(_LONG_NUMBER) * _VALUES_LIKE_A_LONG_NUMBER
        if not piece.isascii() or _ESCAPED in piece:
            self._is_ascii = False
            self._values += dense.count(b'"')
        for_bytes = 0 if self._is_ascii else min(_MOST_VALUES_FOR_BYTES, self._num_bytes / _BYTES_LIKE_A_VALUE)
        if self._values + for_bytes > MAX_VALUES + _FEW:
            problem = f"the body holds more than {MAX_VALUES} values, names, escapes and long numbers"
            raise APIError(413, f"{problem}; send several requests")


class Floats:
    """Reads the numbers of a body that have a point or an exponent, each from its text, as far as there are few.

    msgspec by itself takes many times as long for the smallest (``1e-320``): a body of those stopped a server for
    seconds.
    """

    def __init__(self) -> None:
        self._num_read = 0

    def __call__(self, text: str) -> float:
        """The number.

        Raises:
            APIError: 413.
            ValueError: it is too large.
        """
        self._num_read += 1
        if self._num_read > MAX_FLOATS:
            raise APIError(413, f"the body holds more than {MAX_FLOATS} numbers with a point or an exponent")
        number = float(text)
        if math.isinf(number):
            raise ValueError(f"{text[:20]} is out of range")
        return number
