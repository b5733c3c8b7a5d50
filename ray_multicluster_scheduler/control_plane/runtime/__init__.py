"""The control plane of one process: it feeds events to the scheduler, publishes what happens, and answers queries.

Embedded programs run :class:`~.runtime.Runtime` on a thread of their own; ``rmcs up`` runs its durable subclass in
``service/``. The client library (``app``) and the HTTP service (``control_plane.admin_api``) both stand on this
package; it imports only ``scheduler``, ``control_plane.store``, ``control_plane.config`` and ``common``. Start
with ``runtime.py`` (how the parts are wired), then ``interface.py`` (what clients may ask) and ``item.py``.
"""
