"""`ServerOptions`: every setting of the server, apart from the engine's, as flags and as keywords."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
from typing import Any

from atom_core.config.options import ConfigError, add_options, option, options_of
from atom_core.engine.inputs.placed_images import MAX_IMAGES
from atom_server import settings
from atom_server.media_domains import MediaDomains
from atom_server.output.notation import FORMATS
from atom_server.output.reasoning import MARKERS

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z@?#]+")
_option = functools.partial(option, section="Server")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The settings that people write for ``atom serve``; each is a flag, in kebab or snake case.

    Raises:
        atom_core.config.ConfigError: a value that is not allowed.
    """

    host: str = _option("127.0.0.1", "Address to listen on; 0.0.0.0 is every one of this machine.")
    port: int = _option(8000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    server_port: int | None = _option(
        None,
        "The same under ROCm/ATOM's name. Where both are given this one counts: there, --port was the engines' own.",
        minimum=0,
        maximum=65535,
    )
    uds: str | None = _option(
        None, "Path of a Unix socket to listen on in place of --host and --port; the umask says who may connect."
    )
    ssl_certfile: str | None = _option(
        None, "PEM file with the certificate, and those that it rests on: the server then speaks TLS 1.2 or newer."
    )
    ssl_keyfile: str | None = _option(
        None, "PEM file with the certificate's private key, where that is not in --ssl-certfile; it has no passphrase."
    )
    ssl_ca_certs: str | None = _option(
        None, "PEM file with authorities: only clients with a certificate of one of them may connect."
    )
    served_model_name: str | None = _option(
        None,
        "Names that requests may use, separated by commas; answers carry the first. Unset takes the name of --model.",
    )
    api_key: str | None = _option(
        None,
        "Bearer token that every request but GET /health, /ready and the files of the page must carry, or several "
        "separated by commas; "
        "unset takes ATOM_API_KEY, and where that is unset too, no key is asked for.",
    )
    api_key_file: str | None = _option(
        None,
        "File with more such keys, one in each line, after a name where it has one; sha256: and a digest stand for a "
        "key. Keys have shares, limits, cached prefixes and stored responses of their own.",
    )
    admin_key: str | None = _option(
        None,
        "Bearer token of the routes that are about the server itself, such as /start_profile; it may do all else too. "
        "Unset takes ATOM_ADMIN_KEY; without one these routes are closed where keys are asked for.",
    )
    require_key: bool = _option(False, "Refuse to start without a key.")
    open_metrics: bool = _option(False, "Let /metrics be read without a key.")
    page: bool = _option(
        True,
        "Serve a web page at / to chat by and to watch the engine. Its files need no key; what it asks for does.",
    )
    metrics_prefix: str = _option(
        "atom",
        "What the names of /metrics begin with; vllm suits dashboards and routers made for it.",
        choices=("atom", "vllm"),
    )
    share_prefixes: bool = _option(
        False,
        "Let requests of several keys share cached prefixes. Without it each key finds only its own, so that none can "
        "find out what others send.",
    )
    requests_per_minute: int = _option(0, "Requests of each key, in a minute; 0 sets no limit.", minimum=0)
    tokens_per_minute: int = _option(
        0, "Tokens of prompts and output of each key, in a minute; 0 sets no limit.", minimum=0
    )
    allowed_hosts: str | None = _option(
        None,
        "Names that the Host header may carry besides localhost and loopback addresses, separated by commas; * allows "
        "any. Unset, a server whose --host is a loopback address takes no others, so that no web page reaches it under "
        "a name of its own; every other server takes any.",
    )
    allowed_origins: str | None = _option(
        None,
        "Origins of web pages that may use this server, such as https://app.example, separated by commas; * allows "
        "any. Without it no page of another site may (CORS).",
    )
    chat_template: str | None = _option(None, "Jinja file that replaces the model's chat template.")
    response_template: str | None = _option(
        None, "JSON file that replaces the model's response template (how its replies are read); none leaves it aside."
    )
    tool_call_format: str = _option(
        "auto", "How the model writes tool calls; auto sees it in the chat template.", choices=("auto", *FORMATS)
    )
    reasoning_format: str = _option(
        "auto",
        "What encloses the model's reasoning; auto sees it in the chat template, none leaves it in the text.",
        choices=("auto", "none", *MARKERS),
    )
    max_body_mb: float = _option(16.0, "Larger request bodies are refused, in MiB.", minimum=0.001, maximum=65536)
    limit_images_per_prompt: int = _option(
        16, "Pictures that a prompt may have; 0 refuses them all.", minimum=0, maximum=MAX_IMAGES
    )
    max_image_bytes: int = _option(
        20 * 2**20,
        "Larger files of pictures are refused. They come in base64, a third longer, within --max-body-mb.",
        minimum=1,
        maximum=2**30,
    )
    max_image_pixels: int = _option(
        64_000_000,
        "Pictures of more pixels are refused before they are decoded. Each of up to four decoders takes 20 bytes of "
        "memory for each of these.",
        minimum=1,
        maximum=2**30,
    )
    image_processor: str = _option(
        "atom",
        "What brings pictures to the size that the model takes: our own processing, or the checkpoint's own image "
        "processor, run by transformers within the same limits of memory and time. Videos always pass ours.",
        choices=("atom", "checkpoint"),
    )
    limit_videos_per_prompt: int = _option(
        4, "Videos that a prompt may have; 0 refuses them all.", minimum=0, maximum=MAX_IMAGES
    )
    max_video_bytes: int = _option(
        64 * 2**20,
        "Larger files of videos are refused. In base64 they come within --max-body-mb.",
        minimum=1,
        maximum=2**32,
    )
    allowed_media_domains: str | None = _option(
        None,
        "Servers from which pictures and videos of http and https URLs may be fetched, separated by commas; *.name is "
        "all below a name, * any; another port than the scheme's own stands behind it. Private addresses are never "
        "asked. Unset, nothing is fetched.",
    )
    media_fetch_timeout: float = _option(
        10.0, "Seconds that fetching one of these may take, with all redirects.", minimum=0.01, maximum=600
    )
    batch_folder: str | None = _option(
        None,
        "Folder for what /v1/files and /v1/batches keep; unset, they answer 404. A server that is started again "
        "with it goes on with open batches.",
    )
    batch_folder_mb: float = _option(
        4096.0, "What the files in --batch-folder may take together, in MiB.", minimum=0.001, maximum=2**30
    )
    max_connections: int = _option(
        4096,
        "Connections at once. Beyond, the one that has waited longest for a request is closed; where all are being "
        "answered, the new one gets 503.",
        minimum=1,
    )
    timeout_request: float = _option(
        30.0,
        "Seconds in which a client must send the headers of a request, and again its body. A client that takes nothing "
        "of its answer for so long is cut off.",
        minimum=0.01,
    )
    drain_timeout: float = _option(
        30.0, "Seconds that running requests get to finish after SIGTERM or Ctrl-C.", minimum=0
    )
    restart_engine: int = _option(
        0, "How many times the engine is started anew after it died or hung, before the server ends.", minimum=0
    )
    timeout_keep_alive: int = _option(5, "Seconds after which an idle connection is closed.", minimum=0)
    otlp_traces_endpoint: str | None = _option(
        None,
        "Address to which a span of OpenTelemetry is sent for each request, as OTLP over HTTP, such as "
        "http://localhost:4318/v1/traces; it needs atom-server[otel].",
    )
    request_log: str | None = _option(
        None,
        "File to which a line of JSON is appended for each request: ids, key, status, tokens and times, never any "
        "text; - is standard output.",
    )
    log_level: str = _option(
        "info", "How much to log; info is one line for each request.", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        for entry in options_of(type(self)):
            object.__setattr__(self, entry.name, entry.check(getattr(self, entry.name)))
        if self.api_key is not None:
            _check_keys("api_key", self.api_key, self.api_keys)
        if self.admin_key is not None:
            _check_keys("admin_key", self.admin_key, _listed(self.admin_key))
        if (self.ssl_keyfile or self.ssl_ca_certs) and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile and ssl_ca_certs are for TLS, which needs --ssl-certfile too")
        _check_origins(self.origins)
        MediaDomains(self.media_domains)
        if self.server_port is not None:
            object.__setattr__(self, "port", self.server_port)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add every flag to `parser`, and return it."""
        add_options(parser, cls)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerOptions:
        """The options that a parsed namespace gives; keys may also come from the environment."""
        given: dict[str, Any] = {entry.name: getattr(args, entry.name, None) for entry in options_of(cls)}
        if given["api_key"] is None:
            given["api_key"] = settings.api_key()
        if given["admin_key"] is None:
            given["admin_key"] = settings.admin_key()
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """The names, in order; empty where the model's own is to be used."""
        return _listed(self.served_model_name)

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys; empty where none is asked for."""
        return _listed(self.api_key)

    @property
    def host_names(self) -> tuple[str, ...]:
        """The names of `allowed_hosts`; empty where none is given."""
        return _listed(self.allowed_hosts)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of `allowed_origins`; empty where none is given."""
        return _listed(self.allowed_origins)

    @property
    def media_domains(self) -> tuple[str, ...]:
        """The entries of `allowed_media_domains`; empty where nothing is fetched."""
        return _listed(self.allowed_media_domains)

    @property
    def max_body_bytes(self) -> int:
        """The largest request body."""
        return int(self.max_body_mb * 2**20)


def _check_keys(name: str, given: str, keys: tuple[str, ...]) -> None:
    """Refuse what would leave the server open although a key was meant, or a key that no client could send."""
    if not keys:
        raise ConfigError(
            f"{name} is {given!r}, which holds no key; give one, or leave --{name.replace('_', '-')} and "
            f"ATOM_{name.upper()} unset"
        )
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ConfigError(f"{name} holds a character that no header can carry; use printable ASCII")


def _check_origins(origins: tuple[str, ...]) -> None:
    """Refuse what no browser would send as an origin, so that a slip does not look like a page that is shut out."""
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"allowed_origins has {origin!r}; an origin is a scheme, a host in lower case and a port where it is "
                "not the scheme's own, without a path: https://app.example or http://localhost:3000"
            )


def _listed(text: str | None) -> tuple[str, ...]:
    parts = (part.strip() for part in (text or "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))
