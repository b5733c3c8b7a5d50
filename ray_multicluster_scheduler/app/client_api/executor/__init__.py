"""The fleet as a ``concurrent.futures`` executor: FleetExecutor with its chunked ``map``, and ActorPool.

Programs import these through the package; besides it only ``util.py`` imports from here. Start reading in
``executor.py``; ``chunked_map.py`` packs many calls into one Ray task, and ``chunk_call.py`` is its half inside the
cluster.
"""
