"""An OpenTelemetry collector on a free local port, which records the spans that it receives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    """A received span; times in seconds. ``error`` is the message of an error status, else None."""

    trace: str
    id: str
    parent: str
    name: str
    begun: float
    ended: float
    words: dict[str, Any]
    error: str | None
    moments: list[tuple[str, float]]
    resource: dict[str, Any]


class OtlpCollector:
    """``wait`` is called before each answer; ``status`` is what it answers."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.paths: list[str] = []
        self.requests, self.status = 0, 200
        self.wait: Callable[[], object] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests += 1
                outer.wait()
                if outer.status == 200:
                    outer.paths.append(self.path)
                    outer.spans += _read(body)
                try:
                    self.send_response(outer.status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:  # the sender has disconnected
                    return

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def named(self, name: str) -> list[Span]:
        return [one for one in self.spans if one.name == name]

    def of(self, item_id: str) -> list[Span]:
        """The whole trace of an item, by its beginning."""
        traces = {one.trace for one in self.spans if one.words.get("rmcs.id") == item_id}
        return sorted((one for one in self.spans if one.trace in traces), key=lambda one: (one.begun, one.parent))

    def __enter__(self) -> OtlpCollector:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _read(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.start_time_unix_nano / 1e9,
            span.end_time_unix_nano / 1e9,
            _words(span.attributes),
            span.status.message if span.status.code == 2 else None,
            [(event.name, event.time_unix_nano / 1e9) for event in span.events],
            _words(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _words(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
