"""Agents: our processes in the clusters. How they are started and stopped (carriers), how they connect and are
authenticated (listener, dialer), and what is stored for the next process. Imported by
``ray_client_pool.py`` and ``links``. Start with ``carrier.py``, then read ``agent_listener.py``."""
