"""Spans on their way to a collector. Only this module imports opentelemetry, and it is imported only with traces on."""

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
from ray_multicluster_scheduler.control_plane.admin_api.tracing.item_spans import ItemSpan, span_id_of, trace_id_of

_TIMEOUT_S = 5.0
_NANO = 1_000_000_000


class Collector:
    """Used by one thread, but for :meth:`close`. Headers, certificates and sampling are as the variables ``OTEL_…`` of
    the environment say."""

    def __init__(self, endpoint: str, control_plane: str) -> None:
        self._control_plane = control_plane
        self._ids = _Ids()
        self._made = _Made()
        resource = Resource.create(
            {
                "service.name": "ray_multicluster_scheduler",
                "service.version": __version__,
                "service.instance.id": control_plane,
            }
        )
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer("ray_multicluster_scheduler", __version__)
        self._heard = _Heard()
        self._exporter = trace_exporter.OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_TIMEOUT_S)

    def add(self, item_id: str, spans: Sequence[ItemSpan]) -> None:
        """To what :meth:`send` sends; the first one is the parent of the others."""
        self._ids.trace = trace_id_of(self._control_plane, item_id)
        parent = None
        for one in spans:
            self._ids.span = span_id_of(self._control_plane, item_id, one.part)
            begun = int(one.begun * _NANO)
            span = self._tracer.start_span(one.name, parent, attributes=one.words, start_time=begun)
            for moment in one.moments:
                span.add_event(moment.name, moment.words, int(moment.at * _NANO))
            if one.error is not None:
                span.set_status(Status(StatusCode.ERROR, one.error))
            span.end(max(begun, int(one.ended * _NANO)))
            parent = parent or set_span_in_context(span)

    def send(self) -> str | None:
        """All that was added since it last went well. Returns why it could not be sent; None: it was."""
        if self._made.spans and self._exporter.export(self._made.spans) is not SpanExportResult.SUCCESS:
            return self._heard.last
        self._made.spans = []
        return None

    def forget(self) -> None:
        """What was added and not sent."""
        self._made.spans = []

    def close(self) -> None:
        """From any thread: what is being sent is not tried again."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call] # theirs has no types


class _Ids(IdGenerator):
    """Those that were said last."""

    trace = span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Made(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Heard(logging.Handler):
    """What the exporter complains about, each time, is for us: we say it once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = "it does not answer"
        theirs = logging.getLogger(trace_exporter.__name__)
        theirs.handlers, theirs.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "due to timeout" not in said:  # that comes last, and says nothing of what was wrong
            self.last = said[:300]
