"""Numbers about a service: Prometheus metrics, load over time, queue counts, and the trace of past work.

Only ``routes`` and the simulation tests use it. Start at ``fleet_metrics``.
"""
