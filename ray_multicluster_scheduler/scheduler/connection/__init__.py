"""Connections to clusters: links for tasks and actors (``RayClientPool``), the Jobs API over HTTP (``JobClientPool``),
idle links (``ConnectionLifecycleManager``), and the code that runs in the clusters (``gateway``) or in connector
processes (``connector``). The gateway and the connector import nothing else from here; ``scheduler_core``, ``monitor``
and ``control_plane`` import the pools. Start with ``ray_client_pool.py``, then read ``links/cluster_link.py``."""
