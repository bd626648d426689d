"""`ServerState`: what the routes share. One for each app, made by `startup`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atom_server.errors import APIError, engine_dead, paused, shutting_down, sleeping

if TYPE_CHECKING:
    from starlette.requests import Request

    from atom_core import AsyncEngine, Tokenizer
    from atom_core.messages import NamedAdapter
    from atom_server.access.keys import KeyRing
    from atom_server.access.rate_limits import RateLimits
    from atom_server.batches.worker import BatchWorker
    from atom_server.generation.batch_share import BatchShare
    from atom_server.generation.generation import Generation
    from atom_server.observe.metrics import Metrics
    from atom_server.observe.request_file import RequestFile
    from atom_server.observe.traces import Traces
    from atom_server.options import ServerOptions
    from atom_server.output.output_format import OutputFormat
    from atom_server.pictures.decoder import PictureDecoder
    from atom_server.prompts.call_history import HistoryStyle
    from atom_server.prompts.chat_template import ChatTemplate
    from atom_server.request_log import RequestRecord
    from atom_server.responses.store import ResponseStore


@dataclass(kw_only=True)
class ServerState:
    """The engine, its template and names, and whether the server takes requests.

    Attributes:
        template: None where the model has none.
        served_names: names of the model that requests may use; answers carry the first.
        model_root: what clients may know of where the model comes from: no folders of this machine.
        history_style: how the template takes earlier calls.
        output_format: how the model writes reasoning and calls; None without a template.
        keys: who may use the server.
        rates: how much each of them may use.
        metrics: counts of what has been served.
        responses: the answers that the Responses API has stored, to be fetched or continued.
        batches: files and batches, where there is a folder for them.
        batch_share: how much of the engine their lines may have.
        pictures: decodes them; None where the model sees none.
        request_file: where each HTTP request leaves a line of JSON, if anywhere.
        traces: where a span of each HTTP request goes, if anywhere.
        draining: the server is going down and takes no new work.
        dead_reason: why the engine is gone; None while it works.
        active: what is generating for the HTTP requests that are open.
        open_requests: HTTP requests whose answer has not ended.
    """

    engine: AsyncEngine
    options: ServerOptions
    template: ChatTemplate | None
    served_names: tuple[str, ...]
    model_root: str
    history_style: HistoryStyle
    output_format: OutputFormat | None
    keys: KeyRing
    rates: RateLimits
    metrics: Metrics
    responses: ResponseStore
    batch_share: BatchShare
    batches: BatchWorker | None = None
    pictures: PictureDecoder | None = None
    request_file: RequestFile | None = None
    traces: Traces | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    dead_reason: str | None = None
    active: set[Generation] = field(default_factory=set)
    open_requests: set[RequestRecord] = field(default_factory=set)

    @property
    def model_name(self) -> str:
        """The name that answers carry."""
        return self.served_names[0]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; APIError 400 where the server was started without one."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            message = "this server has no tokenizer (--skip-tokenizer-init): send prompts as token ids"
            raise APIError(400, message, param="prompt", code="no_tokenizer")
        return tokenizer

    def close(self) -> None:
        """Let go of files, and send the last spans, after the last request."""
        if self.request_file is not None:
            self.request_file.close()
        if self.traces is not None:
            self.traces.close()
        if self.batches is not None:
            self.batches.store.close()
        if self.pictures is not None:
            self.pictures.close()

    def check_model(self, name: str | None) -> str:
        """The name to answer with; APIError 404 for one that is not served."""
        if name is None:
            return self.model_name
        # Clients that were told the folder or the file may go on with it, where nobody chose other names.
        is_path = not self.options.served_model_names and name == self.engine.info.model
        if name not in self.served_names and name not in self.adapters and not is_path:
            served = ", ".join((*self.served_names, *self.adapters))
            message = f"the model {name[:200]!r} is not served here; served: {served}"
            raise APIError(404, message, param="model", code="model_not_found")
        return name

    @property
    def adapters(self) -> Mapping[str, NamedAdapter]:
        """What requests may name in the place of the model."""
        return self.engine.adapters.loaded

    def adapter_of(self, name: str | None) -> str:
        """The adapter that a request asks for by the name of a model; "" where it asks for the model itself."""
        return name if name is not None and name in self.adapters else ""

    def task_of(self, name: str | None) -> str | None:
        """The task of the model whose adapter `adapter_of` gives, if it is one's."""
        adapter = self.adapter_of(name)
        return adapter if adapter in self.engine.embedding_model.tasks else None

    def check_takes_requests(self) -> None:
        """Raise APIError 503 while the server is going down or its engine is gone or sleeps."""
        if self.dead_reason is not None:
            raise engine_dead(self.dead_reason)
        if self.draining:
            raise shutting_down()
        if self.engine.control.sleep_level:
            raise sleeping()

    def check_is_ready(self) -> None:
        """Raise APIError 503 where new requests would be refused, or would wait for an administrator."""
        self.check_takes_requests()
        if self.engine.control.is_paused:
            raise paused()


def server_state(request: Request) -> ServerState:
    """The state of the app that `request` came to."""
    return request.app.state.server
