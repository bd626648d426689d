"""`Traces`: a span of OpenTelemetry for each request, made when it has ended, so that nothing is paid before."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_core.config import ConfigError
from atom_server.request_log import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

# By path, what OpenTelemetry's conventions for generative models call it.
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_EXPORT_SECONDS = 5


class Traces:
    """Sends spans to an exporter from a thread of its own. What a client began (W3C's ``traceparent``) goes on here.

    Args:
        exporter: takes the spans.
        model_name: the name that answers carry.
    """

    def __init__(self, exporter: SpanExporter, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._model_name = model_name
        self._provider: TracerProvider = TracerProvider(resource=Resource.create({"service.name": "atom"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("atom_server")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str, model_name: str) -> Traces:
        """Spans as OTLP over HTTP to an address such as ``http://localhost:4318/v1/traces``.

        Raises:
            ConfigError: OpenTelemetry is not installed, or the address is none.
        """
        check_endpoint(endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return cls(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS), model_name)

    def take(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """A request has ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended = time.time_ns()
        operation = _OPERATIONS.get(record.path)
        span = self._tracer.start_span(
            f"{operation} {self._model_name}" if operation else f"{record.method} {record.path}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            start_time=ended - int((time.monotonic() - record.begun) * 1e9),
            attributes=self._attributes(record, operation),
        )
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _attributes(self, record: RequestRecord, operation: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {
            "http.request.method": record.method,
            "url.path": record.path,
            "http.response.status_code": record.status,
            "atom.request.id": record.request_id,
        }
        if record.key:
            found["atom.key.name"] = record.key
        if operation is not None:
            found |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "atom"}
            found |= {"gen_ai.request.model": self._model_name}
        if record.answer_id is not None:
            found["gen_ai.response.id"] = record.answer_id
        if record.prompt_tokens is not None:
            found |= {
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
                "gen_ai.usage.output_tokens": record.output_tokens,
                "gen_ai.latency.time_in_queue": record.queued,
                "gen_ai.latency.time_to_first_token": record.ttft,
                "gen_ai.latency.time_per_output_token": record.tpot,
            }
        if record.finish_reasons:
            found["gen_ai.response.finish_reasons"] = record.finish_reasons
        return found


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError unless spans could be sent to `endpoint`."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"otlp_traces_endpoint is {endpoint!r}; it must be an address of OTLP over HTTP, such as "
            "http://localhost:4318/v1/traces"
        )
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        message = "otlp_traces_endpoint needs OpenTelemetry: install atom-server with its extra otel"
        raise ConfigError(message) from None
