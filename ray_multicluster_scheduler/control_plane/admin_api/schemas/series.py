"""What the routes of load and metrics answer."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    by_name,
    many,
    number,
    or_null,
    text,
    thing,
    whole,
)

_COLUMN = many(or_null(number()))
SERIES = Described(
    summary="Load and queues over time",
    answer=one(
        thing(
            every_s=whole(),
            at=many(number("Seconds since 1970.")),
            queues=by_name(_COLUMN, "How many waited, by queue: task and job."),
            running=_COLUMN,
            clusters=by_name(
                thing(items=_COLUMN, ahead=_COLUMN, up=_COLUMN, cpu=_COLUMN, gpu=_COLUMN, memory=_COLUMN),
                "By cluster: items there, sent ahead, 1 if it took work, and which part of its resources was taken.",
            ),
        ),
        {
            "every_s": 60,
            "at": [1794700740, 1794700800],
            "queues": {"task": [0, 3], "job": [0, 1]},
            "running": [None, 8],
            "clusters": {
                "mac": {
                    "items": [None, 8],
                    "ahead": [None, 0],
                    "up": [None, 1],
                    "cpu": [None, 1.0],
                    "gpu": [None, None],
                    "memory": [None, 0.25],
                }
            },
        },
    ),
)
METRICS = Described(
    summary="Figures for Prometheus",
    answer=one(text(), "# TYPE rmcs_queue_depth gauge\nrmcs_queue_depth 3\n", "text/plain"),
)
