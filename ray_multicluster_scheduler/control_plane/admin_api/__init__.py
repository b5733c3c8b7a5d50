"""The service's HTTP API: REST, events over SSE and WebSocket, access control, metrics. No scheduling logic.

``cli`` may import it; it stands on ``control_plane.runtime.service`` and everything below. Start reading at
``http/app.py`` (:func:`create_app`: all routes and middleware), then ``serve.py`` (the process of ``rmcs up``) and
``routes/`` (one module for each resource). ``create_app`` is loaded when it is used, so that importing the
package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
else:
    from ray_multicluster_scheduler.common.lazy_imports import lazy_attributes

    __getattr__ = lazy_attributes(__name__, {"http.app": "create_app"})

__all__ = ["create_app"]
