"""The byte alphabet of GPT-2's tokenizer: each byte spelt as one printable character."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spelt = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    spelt.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return spelt


BYTE_OF_CHARACTER = _alphabet()
CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a byte-level token spells; characters outside the alphabet stand for their own UTF-8."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


def byte_level_spelling(token: bytes) -> str:
    """How a byte-level vocabulary spells the bytes of a token."""
    return "".join(CHARACTER_OF_BYTE[byte] for byte in token)
