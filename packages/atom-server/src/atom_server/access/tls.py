"""`tls_context`: what the server proves itself by, and whom it asks for a certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from atom_core.config import ConfigError
from atom_server.options import ServerOptions


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The context of every connection; None where the server speaks plain HTTP.

    Raises:
        ConfigError: a file cannot be read, or does not hold what it should.
    """
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without this a key with a passphrase would wait at the terminal for somebody to type it.
    _read("--ssl-certfile", certificate, lambda: context.load_cert_chain(certificate, key, password=lambda: ""), key)
    if options.ssl_ca_certs is not None:
        _read("--ssl-ca-certs", options.ssl_ca_certs, lambda: context.load_verify_locations(options.ssl_ca_certs))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read(flag: str, file: str, read: Callable[[], None], key: str | None = None) -> None:
    files = file if key is None else f"{file} with --ssl-keyfile {key}"
    try:
        read()
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise ConfigError(f"{flag} {files} cannot be used: {reason}; give PEM files that belong together") from None
    except OSError as error:
        raise ConfigError(f"{flag} {files} cannot be read: {error.strerror or error}") from None
