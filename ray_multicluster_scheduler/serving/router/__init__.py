"""The hot path of serving: choose an instance, charge it, forward the request, and return the answer.

``ledger.py`` keeps what is charged to each instance, ``router.py`` chooses and moves tasks between waiting and running;
both are plain Python without I/O, driven by ``serving/core.py`` under one lock. ``forwarder.py`` sends tasks to
instances and probes them, by the pooled connections of ``http_client.py``. Start with ``router.py``. Only ``serving``
imports it.
"""
