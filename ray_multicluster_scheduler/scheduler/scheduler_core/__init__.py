"""Carries out the instructions of the scheduler machine and turns what comes back into its events.

``control_plane/runtime`` imports these parts and wires them together. Start with ``dispatcher.py`` (passes
instructions to ``link_runner.py``, over links, or ``job_runner.py``, over HTTP) and ``result_collector.py`` (receives
results). ``durable_log.py`` and ``record_codec.py`` write the state of a service to the store; the others hold
payloads, output and events.
"""
