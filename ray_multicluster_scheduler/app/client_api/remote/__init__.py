"""The client of a running service: what ``UnifiedScheduler`` uses when it finds one instead of its own control plane.

``remote_runtime.py`` implements the ControlPlane interface over HTTP and is the place to start reading;
``submission_sender.py`` and ``result_poller.py`` are its two directions, ``remote_calls.py`` carries actor calls. The
scheduler imports from here; commands import only the light modules (addresses, credentials, errors).
"""
