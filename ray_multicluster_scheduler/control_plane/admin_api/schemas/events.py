"""What the stream of events tells."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import text

_EXAMPLE = (
    "id: 17\n"
    'data: {"number":17,"type":"transition","at":1794700800.0,"id":"nightly-1","kind":"job","name":"nightly",'
    '"owner":"ann","step":2,"state":"QUEUED","attempt":0,"cluster":null,"code":"QUEUED","sentence":"waits"}\n\n'
)
EVENTS = Described(
    summary="What happens, as it happens",
    answer=one(text("Server-sent events; docs/events.md says what each has."), _EXAMPLE, "text/event-stream"),
    headers=(
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "The number of the last event that you have; as since, and before it.",
            "schema": {"type": "string", "pattern": "^[0-9]*$"},
            "example": "17",
        },
    ),
)
