"""The client library that users' programs import; start with ``client_api/scheduler.py``.

It stands on ``control_plane.runtime``. Only ``cli`` may import it, and the public names of the package and of ``util``.
"""
