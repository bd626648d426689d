"""Spans of OpenTelemetry: one for each request, in the trace that its client began, with numbers and without text."""

from __future__ import annotations

import http.server
import sys
import threading
from typing import Any

import httpx
import pytest

from atom_core.config import ConfigError
from atom_server import ServerOptions
from atom_server.startup import check_options

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans as OTLP over HTTP."""

    spans: list[Any]

    def do_POST(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector():
    """Its address, and the spans that have come there."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    spans: list[Any] = []
    handler = type("Handler", (Collector,), {"spans": spans})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
        server.shutdown()


def attributes(span) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {each.key: plain(each.value) for each in span.attributes}


def test_a_request_is_a_span_of_its_clients_trace(make_front, collector):
    endpoint, spans = collector
    with make_front(ServerOptions(served_model_name="tiny", otlp_traces_endpoint=endpoint)) as front:
        body = {"prompt": "a secret", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = httpx.post(front.url + "/v1/completions", json=body, headers=headers, timeout=30)
        httpx.get(front.url + "/health")
        httpx.post(front.url + "/v1/nothing", json={})
    front.state.close()
    first, other = spans
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert first.name == "text_completion tiny"
    assert 0 < first.end_time_unix_nano - first.start_time_unix_nano < 30e9
    found = attributes(first)
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.response.id"] == answer.json()["id"]
    assert found["gen_ai.usage.output_tokens"] == 3
    assert found["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["gen_ai.latency.time_to_first_token"] > 0
    assert "secret" not in str(first)
    assert (attributes(other)["http.response.status_code"], other.parent_span_id) == (404, b"")


def test_a_trace_that_its_client_does_not_keep_is_not_sent(make_front, collector):
    endpoint, spans = collector
    with make_front(ServerOptions(otlp_traces_endpoint=endpoint)) as front:
        httpx.get(front.url + "/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    front.state.close()
    assert spans == []


def test_a_server_without_traces_makes_none(server):
    assert server.state.traces is None


def test_an_address_that_is_none_is_told_before_the_start():
    with pytest.raises(ConfigError, match="'localhost:4317'; it must be an address of OTLP over HTTP"):
        check_options(ServerOptions(otlp_traces_endpoint="localhost:4317"))


def test_what_is_not_installed_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="needs OpenTelemetry: install atom-server with its extra otel$"):
        check_options(ServerOptions(otlp_traces_endpoint="http://localhost:4318/v1/traces"))
