"""What a simulation takes and answers."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import ANYTHING, by_name, text, thing, whole

SIMULATE = Described(
    summary="What would become of a workload",
    body=one(
        thing(
            synthetic=text("A made-up workload, as of `rmcs simulate --synthetic`."),
            maybe={
                "nodes": by_name(text(), "How large clusters are, by name; else as they were last seen."),
                "settings": {**ANYTHING, "description": "Instead of those that are in force."},
                "seed": whole("Same seed, same run.", minimum=0),
            },
        ),
        {"synthetic": "items=50 over=10min run=constant:30", "nodes": {"mac": "2x{CPU:8}"}, "seed": 1},
    ),
    answer=one({**ANYTHING, "description": "The figures of the run, as of `rmcs simulate -o json`."}, {"items": 50}),
)
