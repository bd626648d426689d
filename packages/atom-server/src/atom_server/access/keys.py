"""`KeyRing`: the keys that a server knows, as digests; from flags, the environment and a file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from atom_core.config import ConfigError
from atom_server.options import ServerOptions

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_ADMIN = "admin"


@dataclass(frozen=True)
class Caller:
    """Who sent a request.

    Attributes:
        name: the key's name; "" where the server asks for none.
        is_admin: may use the routes that are about the server itself.
        tenant: whose share of the engine and of its queue is used; "" where there is only one caller.
        salt: keeps the caller's cached prefixes apart from those of others; b"" where they may be shared.
        is_batch: the request is a line of a batch, for which nobody waits.
    """

    name: str = ""
    is_admin: bool = True
    tenant: str = ""
    salt: bytes = b""
    is_batch: bool = False

    def cache_salt(self, own: str) -> str:
        """The salt of a request that gave `own`. No other caller can arrive at the same one."""
        if not self.salt:
            return own
        return hmac.new(self.salt, own.encode(), hashlib.sha256).hexdigest()


ANYBODY = Caller()


@dataclass(frozen=True)
class _Key:
    digest: bytes
    name: str
    is_admin: bool = False


class KeyRing:
    """The digests of all keys; the keys themselves are not kept. Without any key, everybody may do everything.

    Raises:
        ConfigError: two keys have one name, or one key two names.
    """

    def __init__(self, keys: Iterable[tuple[str, bytes]] = (), *, admin: bytes | None = None, salted: bool = True):
        self._keys = [_Key(digest, name) for name, digest in keys]
        if admin is not None:
            self._keys.append(_Key(admin, _ADMIN, is_admin=True))
        names = [key.name for key in self._keys]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"two keys have the name {repeated[0]!r}: give each its own")
        digests = [key.digest for key in self._keys]
        if repeated := [key.name for key in self._keys if digests.count(key.digest) > 1]:
            raise ConfigError(f"{' and '.join(map(repr, repeated))} are one key: give each its own")
        has_others = len(self._keys) > 1
        self._callers = [
            Caller(
                key.name,
                key.is_admin,
                tenant=key.name if has_others else "",
                salt=hashlib.sha256(b"prefixes of " + key.digest).digest() if has_others and salted else b"",
            )
            for key in self._keys
        ]

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def of(cls, options: ServerOptions) -> KeyRing:
        """The keys that `options` give.

        Raises:
            ConfigError: the key file cannot be read or holds no key, or a key is required and there is none.
        """
        keys = [_named(key) for key in options.api_keys]
        if options.api_key_file is not None:
            keys += read_key_file(Path(options.api_key_file))
        admin = None if options.admin_key is None else _digest(options.admin_key)
        if options.require_key and not keys:
            raise ConfigError("require_key is set, and there is no key: give --api-key-file, --api-key or ATOM_API_KEY")
        return cls(keys, admin=admin, salted=not options.share_prefixes)

    def find(self, given: str) -> Caller | None:
        """The caller with the key `given`; None if it is unknown. Every key takes equally long."""
        if not self._keys:
            return ANYBODY
        digest = _digest(given)
        found = None
        for key, caller in zip(self._keys, self._callers, strict=True):
            if hmac.compare_digest(digest, key.digest):
                found = caller
        return found

    def named(self, name: str) -> Caller | None:
        """The caller of that name; None where no key has it any more."""
        if not self._keys:
            return None if name else ANYBODY
        return next((caller for caller in self._callers if caller.name == name), None)


def read_key_file(path: Path) -> list[tuple[str, bytes]]:
    """Names and digests of the keys in a file. A line has a key, or a name and a key; # begins a comment.

    A key may be given as ``sha256:`` and its digest in hexadecimal, so that the file holds no secret.

    Raises:
        ConfigError: one line that says which line of the file is wrong; it never shows a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file {str(path)!r} cannot be read: {error}") from None
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        name, key = words if len(words) == 2 else ("", words[0])
        if len(words) > 2 or (name and not _NAME.fullmatch(name)) or name == _ADMIN or not key.isascii():
            raise ConfigError(
                f"api_key_file {str(path)!r}, line {number}: must be a key, or a name (letters, digits, _ . -, not "
                f"{_ADMIN!r}) and a key of printable ASCII"
            )
        keys.append((name, _digest_of(key)) if name else _named(key))
    if not keys:
        raise ConfigError(f"api_key_file {str(path)!r} holds no key: write one in each line")
    if mode & (stat.S_IRGRP | stat.S_IROTH) and "sha256:" not in text:
        logger.warning("api_key_file %s can be read by others than its owner (chmod 600)", path)
    return keys


def _named(key: str) -> tuple[str, bytes]:
    digest = _digest_of(key)
    return f"key-{digest.hex()[:12]}", digest


def _digest_of(key: str) -> bytes:
    hashed = _DIGEST.fullmatch(key)
    return bytes.fromhex(hashed[1]) if hashed else _digest(key)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
