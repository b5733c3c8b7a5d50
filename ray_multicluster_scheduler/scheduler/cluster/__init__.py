"""What the scheduler knows of each cluster: registry, life cycle, health, and the ledger of reserved resources. Start
with ``cluster_manager.py`` (life cycle), ``cluster_state.py`` (state of one cluster) and ``ledger.py`` (free capacity
per node). Pure; ``scheduler/lifecycle``, ``scheduler/policy``, ``scheduler/queue`` and the control plane import it, it
imports models and settings."""
