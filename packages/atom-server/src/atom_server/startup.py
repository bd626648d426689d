"""What a server is made of: templates, names, keys and stores, settled before the first request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom_core.config import ConfigError
from atom_server.access.keys import KeyRing
from atom_server.access.rate_limits import RateLimits
from atom_server.access.tls import tls_context
from atom_server.batches.folder import BatchFolder
from atom_server.batches.room import Room
from atom_server.batches.store import BatchStore
from atom_server.batches.worker import BatchWorker
from atom_server.generation.batch_share import BatchShare
from atom_server.observe.metrics import Metrics
from atom_server.observe.request_file import RequestFile
from atom_server.observe.traces import Traces, check_endpoint
from atom_server.options import ServerOptions
from atom_server.output.output_format import OutputFormat
from atom_server.output.response_template import ResponseTemplate
from atom_server.pictures.decoder import PictureDecoder
from atom_server.prompts.call_history import HistoryStyle
from atom_server.prompts.chat_template import ChatTemplate
from atom_server.responses.store import ResponseStore
from atom_server.state import ServerState

if TYPE_CHECKING:
    from atom_core import AsyncEngine, Tokenizer


def check_options(options: ServerOptions) -> None:
    """Find what can be wrong without a model, before one is loaded.

    Raises:
        ChatTemplateError, OSError, ConfigError: as `make_state`.
    """
    KeyRing.of(options)
    tls_context(options)
    if options.otlp_traces_endpoint is not None:
        check_endpoint(options.otlp_traces_endpoint)
    load_template(None, options.chat_template)
    load_response_template(None, options.response_template)
    if options.batch_folder is not None:
        BatchFolder(Path(options.batch_folder)).close()
    if options.request_log is not None:
        RequestFile(options.request_log).close()


def make_state(engine: AsyncEngine, options: ServerOptions) -> ServerState:
    """Read the templates and settle the names. A response template that cannot be followed is logged.

    Raises:
        ChatTemplateError, OSError: the chat template cannot be read or does not parse.
        ConfigError: the response template, the keys, the folder of batches or the log of requests cannot be what the
            options say.
    """
    own_name = _own_name(engine.info.model)
    names = options.served_model_names or (own_name,)
    if twice := sorted(engine.adapters.loaded.keys() & set(names)):
        raise ConfigError(f"lora_modules has the name {twice[0]}, by which the model is served: choose another one")
    template = load_template(engine.tokenizer, options.chat_template)
    declared = load_response_template(engine.tokenizer, options.response_template)
    keys = KeyRing.of(options)
    share = BatchShare.of(engine.info, engine.queue_limits.max_num_queued_tokens)
    return ServerState(
        engine=engine,
        options=options,
        template=template,
        served_names=names,
        model_root=own_name,
        history_style=HistoryStyle() if template is None else HistoryStyle.of(template),
        output_format=None if template is None else _output_format(template, engine.tokenizer, options, declared),
        keys=keys,
        rates=RateLimits(options.requests_per_minute, options.tokens_per_minute),
        metrics=Metrics(engine, prefix=options.metrics_prefix, model_name=names[0]),
        # Nobody waits for responses in the background, so they take less than half of the engine's places.
        responses=ResponseStore(max_running=max((engine.info.max_num_seqs - 1) // 2, 1)),
        batch_share=share,
        batches=_batches(options, share, num_keys=len(keys)),
        traces=None if options.otlp_traces_endpoint is None else Traces.to(options.otlp_traces_endpoint, names[0]),
        pictures=PictureDecoder.of(engine.info, options),
        request_file=None if options.request_log is None else RequestFile(options.request_log),
    )


def _batches(options: ServerOptions, share: BatchShare, *, num_keys: int) -> BatchWorker | None:
    if options.batch_folder is None:
        return None
    room = Room(int(options.batch_folder_mb * 2**20), shared=num_keys > 1)
    return BatchWorker(BatchStore(Path(options.batch_folder), room), at_once=share.num_samples)


def _output_format(
    template: ChatTemplate, tokenizer: Tokenizer | None, options: ServerOptions, declared: Any
) -> OutputFormat:
    calls, reasoning = options.tool_call_format, options.reasoning_format
    return OutputFormat.infer(template.source, tokenizer, calls=calls, reasoning=reasoning, declared=declared)


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


def _own_name(model: str) -> str:
    """The name of a model: of a folder or a file the last part of its path, otherwise what was asked for."""
    path = Path(model)
    return path.resolve().name or model if path.exists() else model
