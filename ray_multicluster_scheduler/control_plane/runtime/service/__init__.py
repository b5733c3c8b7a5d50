"""The durable control plane of the service (``rmcs up``): a Runtime whose items, results and events live in the store.

``admin_api`` and ``cli`` use it; it stands on ``control_plane.runtime``. Start reading at ``service_runtime``
(:class:`ServiceRuntime`: restart, accepting items, queries); the other modules are its parts.
"""
