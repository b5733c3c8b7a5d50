"""Traces of items for OpenTelemetry; off unless the setting ``tracing`` is given."""
