"""Agents: the processes of ours that run in the clusters. How they are started and stopped (carriers), how they connect
and prove who they are (listener, dialer), and what is recorded of them for the next process. Imported by
``ray_client_pool.py`` and ``links``. Start with ``carrier.py``, then read ``agent_listener.py``."""
