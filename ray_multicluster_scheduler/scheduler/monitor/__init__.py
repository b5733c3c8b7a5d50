"""ClusterMonitor takes resource snapshots of clusters; ``prometheus_client`` renders metrics for a scrape. Imported by
``scheduler_core``, ``health`` and ``control_plane``. Start with ``cluster_monitor.py``."""
