"""`ServerState`: what the routes share. One for each app."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom_core.config import ConfigError
from atom_server.access.keys import KeyRing
from atom_server.access.rate_limits import RateLimits
from atom_server.errors import APIError, engine_dead, paused, shutting_down
from atom_server.observe.metrics import Metrics
from atom_server.observe.request_file import RequestFile
from atom_server.options import ServerOptions
from atom_server.output.output_format import OutputFormat
from atom_server.output.response_template import ResponseTemplate
from atom_server.prompts.call_history import HistoryStyle
from atom_server.prompts.chat_template import ChatTemplate
from atom_server.request_log import RequestRecord
from atom_server.responses.store import ResponseStore

if TYPE_CHECKING:
    from starlette.requests import Request

    from atom_core import AsyncEngine, Tokenizer
    from atom_server.generation.generation import Generation


@dataclass
class ServerState:
    """The engine, its template and names, and whether the server takes requests.

    Attributes:
        draining: the server is going down and takes no new work.
        dead_reason: why the engine is gone; None while it works.
        response_template: how the model's replies are read, as JSON declares it.
        active: what is generating for the HTTP requests that are open.
        open_requests: HTTP requests whose answer has not ended.
        request_file: where each of them leaves a line of JSON, if anywhere.
        responses: those that the Responses API has stored, to be fetched or continued.
        keys: who may use the server.
        rates: how much each of them may use.
    """

    engine: AsyncEngine
    options: ServerOptions
    template: ChatTemplate | None
    served_names: tuple[str, ...]
    response_template: Any = None
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    dead_reason: str | None = None
    active: set[Generation] = field(default_factory=set)
    open_requests: set[RequestRecord] = field(default_factory=set)
    request_file: RequestFile | None = None
    responses: ResponseStore = field(default_factory=ResponseStore)
    keys: KeyRing = field(default_factory=KeyRing)
    rates: RateLimits = field(default_factory=RateLimits)

    @classmethod
    def create(cls, engine: AsyncEngine, options: ServerOptions) -> ServerState:
        """Read the templates and settle the names.

        Raises:
            ChatTemplateError, OSError: the chat template cannot be read or does not parse.
            ConfigError: the same of a response template that the options name, of keys, or of the log of requests.
        """
        names = options.served_model_names or (_own_name(engine.info.model),)
        declared = load_response_template(engine.tokenizer, options.response_template)
        state = cls(
            engine,
            options,
            load_template(engine.tokenizer, options.chat_template),
            names,
            declared,
            # Nobody waits for those in the background: others find more than half of the places free of them.
            responses=ResponseStore(max_running=max((engine.info.max_num_seqs - 1) // 2, 1)),
            keys=KeyRing.of(options),
            request_file=None if options.request_log is None else RequestFile(options.request_log),
            rates=RateLimits(options.requests_per_minute, options.tokens_per_minute),
        )
        _ = state.output_format  # warns of what the model declares and cannot be followed
        return state

    @property
    def model_name(self) -> str:
        """The name that answers carry."""
        return self.served_names[0]

    @property
    def model_root(self) -> str:
        """What clients may know of where the model comes from: no folders of this machine."""
        return _own_name(self.engine.info.model)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; APIError 400 where the server was started without one."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            message = "this server has no tokenizer (--skip-tokenizer-init): send prompts as token ids"
            raise APIError(400, message, param="prompt", code="no_tokenizer")
        return tokenizer

    @cached_property
    def metrics(self) -> Metrics:
        """Counts of what has been served."""
        return Metrics(self.engine, prefix=self.options.metrics_prefix, model_name=self.model_name)

    @cached_property
    def output_format(self) -> OutputFormat | None:
        """How the model writes reasoning and calls; None without a template."""
        if self.template is None:
            return None
        options = self.options
        return OutputFormat.infer(
            self.template.source,
            self.engine.tokenizer,
            calls=options.tool_call_format,
            reasoning=options.reasoning_format,
            declared=self.response_template,
        )

    @cached_property
    def history_style(self) -> HistoryStyle:
        """How the template takes earlier calls."""
        return HistoryStyle() if self.template is None else HistoryStyle.of(self.template)

    def close(self) -> None:
        """Let go of files, after the last request."""
        if self.request_file is not None:
            self.request_file.close()

    def check_model(self, name: str | None) -> str:
        """The name to answer with; APIError 404 for one that is not served."""
        if name is None:
            return self.model_name
        # Clients that were told the folder or the file may go on with it, where nobody chose other names.
        is_path = not self.options.served_model_names and name == self.engine.info.model
        if name not in self.served_names and not is_path:
            served = ", ".join(self.served_names)
            message = f"the model {name[:200]!r} is not served here; served: {served}"
            raise APIError(404, message, param="model", code="model_not_found")
        return name

    def check_takes_requests(self) -> None:
        """Raise APIError 503 while the server is going down or its engine is gone."""
        if self.dead_reason is not None:
            raise engine_dead(self.dead_reason)
        if self.draining:
            raise shutting_down()

    def check_is_ready(self) -> None:
        """Raise APIError 503 where new requests would be refused, or would wait for an administrator."""
        self.check_takes_requests()
        if self.engine.control.is_paused:
            raise paused()


def load_template(tokenizer: Tokenizer | None, file: str | None) -> ChatTemplate | None:
    """The template of `file`, else the model's own, else None."""
    source = (
        Path(file).read_text(encoding="utf-8") if file is not None else tokenizer.chat_template if tokenizer else None
    )
    if source is None:
        return None
    return ChatTemplate(source, tokenizer.special_tokens if tokenizer else None)


def load_response_template(tokenizer: Tokenizer | None, file: str | None) -> Any:
    """The response template of `file`, else the checkpoint's own, else None; the file "none" stands for none.

    Raises:
        ConfigError: the file cannot be read, or is no such template.
    """
    if file is None:
        return tokenizer.response_template if tokenizer else None
    if file == "none":
        return None
    try:
        declared = json.loads(Path(file).read_text(encoding="utf-8"))
        ResponseTemplate.load(declared)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--response-template: {file}: {error}") from None
    return declared


def server_state(request: Request) -> ServerState:
    """The state of the app that `request` came to."""
    return request.app.state.server


def _own_name(model: str) -> str:
    """What a model is called: what it was started with, of a folder or a file its name alone."""
    path = Path(model)
    return path.resolve().name or model if path.exists() else model
