"""What the routes of one cluster take and answer."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.admin_api.schemas.fleet import MAC
from ray_multicluster_scheduler.control_plane.admin_api.schemas.items import ID
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, Said, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    ANYTHING,
    Schema,
    flag,
    many,
    named,
    number,
    or_null,
    text,
    thing,
    whole,
)

DETAILS: Schema = {
    "allOf": [
        named("Cluster"),
        thing(
            drained=or_null(flag("Closed and empty; null: it is open.")),
            config={**ANYTHING, "description": "Its entry in clusters.yaml, without secrets."},
            breaker=thing(state=text(), failures_in_a_row=whole(), half_open_at=or_null(number())),
            troubles=many(thing(concerns=text(), code=text(), sentence=text(), maybe={"since": or_null(number())})),
            notes=many(text(), "What is worth knowing, and is no trouble."),
            link=text("Of tasks and actors: none, up or down."),
            in_flight=whole(),
            ahead=whole("Sent before there is a place for it."),
            running_jobs=whole(),
            ready_actors=whole(),
            kept_for=or_null(text("The item that room is kept for; its id for those who may know it.")),
            next_submission_at=or_null(number()),
            heard_at=or_null(number()),
        ),
    ]
}
_MAC = {
    **MAC,
    "drained": None,
    "config": {"name": "mac", "dashboard": "http://192.168.5.2:8265", "auth": "token"},
    "breaker": {"state": "CLOSED", "failures_in_a_row": 0, "half_open_at": None},
    "troubles": [],
    "notes": [],
    "link": "up",
    "in_flight": 1,
    "ahead": 0,
    "running_jobs": 1,
    "ready_actors": 0,
    "kept_for": None,
    "next_submission_at": None,
    "heard_at": 1794700800.0,
}
_NAMES = many(text())

CLUSTER = Described(summary="One cluster", answer=one(DETAILS, _MAC))
CHECK = Described(
    summary="Ask a cluster now",
    answer=one(
        thing(answered=flag(), reason=text("Why it did not."), cluster=DETAILS),
        {"answered": True, "reason": "", "cluster": _MAC},
    ),
)
DRAIN = Described(
    summary="Close a cluster for new work, and wait until it is empty",
    body=one(thing(maybe={"timeout": number("Seconds to wait, 60 at the most.", minimum=0)}), {"timeout": 0}),
    answer=one(thing(drained=flag(), items=many(text(), "What is still there.")), {"drained": False, "items": [ID]}),
)
APPLY = Described(
    summary="Add, change and remove clusters",
    body=Said(
        thing(
            maybe={
                "clusters": many(ANYTHING, "As in clusters.yaml."),
                "settings": {**ANYTHING, "description": "Only compared: they change with the next start."},
                "text": text("Or the text of a clusters.yaml."),
            }
        ),
        {
            "clusters": {"clusters": [{"name": "mac", "dashboard": "http://127.0.0.1:9", "weight": 1.2}]},
            "text": {"text": "clusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9', weight: 1.2}\n"},
        },
    ),
    answer=one(
        thing(
            added=_NAMES,
            changed=_NAMES,
            removed=_NAMES,
            unchanged=_NAMES,
            not_applied=many(text(), "Settings that are others there: they hold from the next start on."),
            not_empty=many(text(), "In a dry run: those that have to be drained first."),
        ),
        {"added": [], "changed": ["mac"], "removed": [], "unchanged": [], "not_applied": [], "not_empty": []},
    ),
)
