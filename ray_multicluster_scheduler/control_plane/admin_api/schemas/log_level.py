"""What the routes of the log's level answer."""

from __future__ import annotations

from ray_multicluster_scheduler.common.logging import LEVELS
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import text, thing

_LEVEL = thing(level=text("The least that is written.", enum=list(LEVELS)))
LOG_LEVEL = Described(summary="How much is written to the log", answer=one(_LEVEL, {"level": "INFO"}))
SET_LOG_LEVEL = Described(
    summary="Write more, or less, to the log",
    body=one(_LEVEL, {"level": "DEBUG"}),
    answer=one(_LEVEL, {"level": "DEBUG"}),
)
