"""What the routes of payloads take and answer."""

from __future__ import annotations

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas.parameters import PAYLOAD
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import BYTES, Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import text, thing, whole

_BYTES = {"type": "string", "format": "binary"}
PUT = Described(
    summary="Keep a payload",
    body=one(_BYTES, PAYLOAD.decode(), BYTES),
    answer=one(thing(digest=text(), bytes=whole()), {"digest": digest_of(PAYLOAD), "bytes": len(PAYLOAD)}),
)
GET = Described(summary="A payload", answer=one(_BYTES, PAYLOAD.decode(), BYTES))
