"""Export of finished items as OpenTelemetry traces, if ``settings.tracing`` names a collector.

Only ``service_runtime`` (which owns the sender) and ``admin_api.metrics`` (which counts what it sent) use it. Start at
``trace_sender``; ``item_spans`` turns an item's history into spans, ``otlp_exporter`` sends them.
"""
