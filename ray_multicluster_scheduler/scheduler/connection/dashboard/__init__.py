"""The HTTP client of a cluster's Ray dashboard: jobs, packages and resource snapshots. Imported by the rest of
``scheduler`` and by ``control_plane``. Start with ``dashboard_client.py``."""
