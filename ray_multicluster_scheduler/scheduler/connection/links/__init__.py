"""ClusterLink, the protocol by which calls reach a cluster, and AgentLink, its implementation over a connection to an
agent: pending calls, results that need an acknowledgement, values that stay in the cluster. Imported by the rest of
``scheduler`` and by ``control_plane``. Start with ``cluster_link.py``, then read ``agent_link.py``."""
