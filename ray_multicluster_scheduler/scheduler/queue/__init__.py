"""The queue of waiting items: order, fair share per owner, groups of equal items, and the usage threshold of a cluster.
Start with ``task_queue.py``. Pure; ``scheduler/lifecycle`` and ``scheduler/policy`` import it, it imports models,
settings and the cluster view."""
