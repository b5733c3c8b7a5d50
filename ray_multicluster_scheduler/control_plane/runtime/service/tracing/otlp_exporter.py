"""OtlpExporter: sends spans to a collector over OTLP/HTTP. The only module that imports opentelemetry, an extra."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.control_plane.runtime.service.tracing.item_spans import (
    ItemSpan,
    span_id_of,
    trace_id_of,
)

_TIMEOUT_S = 5.0
_NANO = 1_000_000_000


class OtlpExporter:
    """Used by one thread, except :meth:`close`. The ``OTEL_…`` environment variables set headers, certificates and
    sampling."""

    def __init__(self, endpoint: str, control_plane: str) -> None:
        self._control_plane = control_plane
        self._ids = _PresetIds()
        self._buffer = _SpanBuffer()
        resource = Resource.create(
            {
                "service.name": "ray_multicluster_scheduler",
                "service.version": __version__,
                "service.instance.id": control_plane,
            }
        )
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._buffer)
        self._tracer = provider.get_tracer("ray_multicluster_scheduler", __version__)
        self._exporter_log = _ExporterLog()
        self._exporter = trace_exporter.OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_TIMEOUT_S)

    def add(self, item_id: str, spans: Sequence[ItemSpan]) -> None:
        """Add to the batch that :meth:`send` sends; the first span is the parent of the others."""
        self._ids.trace = trace_id_of(self._control_plane, item_id)
        parent = None
        for one in spans:
            self._ids.span = span_id_of(self._control_plane, item_id, one.part)
            started_at = int(one.started_at * _NANO)
            span = self._tracer.start_span(one.name, parent, attributes=one.attributes, start_time=started_at)
            for event in one.events:
                span.add_event(event.name, event.attributes, int(event.at * _NANO))
            if one.error is not None:
                span.set_status(Status(StatusCode.ERROR, one.error))
            span.end(max(started_at, int(one.ended_at * _NANO)))
            parent = parent or set_span_in_context(span)

    def send(self) -> str | None:
        """Send all spans added since the last success. Returns the reason if that failed, else None."""
        if self._buffer.spans and self._exporter.export(self._buffer.spans) is not SpanExportResult.SUCCESS:
            return self._exporter_log.last
        self._buffer.spans = []
        return None

    def forget(self) -> None:
        """Drop the spans that were added and not sent."""
        self._buffer.spans = []

    def close(self) -> None:
        """From any thread: a send in progress is not retried."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call] # theirs has no types


class _PresetIds(IdGenerator):
    """Returns the ids that were set last."""

    trace = span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _SpanBuffer(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _ExporterLog(logging.Handler):
    """Takes over the exporter's log, which repeats each failure, and keeps the last message for our own log line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = "it does not answer"
        theirs = logging.getLogger(trace_exporter.__name__)
        theirs.handlers, theirs.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "due to timeout" not in message:  # logged last, and does not name the cause
            self.last = message[:300]
