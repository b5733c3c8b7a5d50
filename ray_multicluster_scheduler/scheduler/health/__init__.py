"""Health checks of clusters on request, and MetricsAggregator, which counts state transitions and durations. Imported
by ``control_plane``. Start with ``health_checker.py``."""
