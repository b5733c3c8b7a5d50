"""What the routes of tokens, sessions and tickets take and answer."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import flag, many, number, or_null, text, thing

_ROLES = many(text("viewer, submitter, operator or admin"))
_ABOUT: dict[str, Any] = {
    "id": text("For listing and revoking; no secret."),
    "user": text(),
    "roles": _ROLES,
    "note": text(),
    "created_at": number("Seconds since 1970."),
    "expires_at": or_null(number("Seconds since 1970; null: never.")),
}
_ALICE = {
    "id": "k3v9x2ab",
    "user": "alice",
    "roles": ["submitter"],
    "note": "her laptop",
    "created_at": 1794700800.0,
    "expires_at": None,
}
LIST = Described(
    summary="All tokens, without what one needs to use them",
    answer=one(thing(tokens=many(thing(**_ABOUT))), {"tokens": [_ALICE]}),
)
CREATE = Described(
    summary="Make a token",
    body=one(
        {
            **thing(user=text(), roles=_ROLES, note=text(), expires_at=or_null(number("Seconds since 1970."))),
            "required": ["user", "roles"],
        },
        {"user": "alice", "roles": ["submitter"], "note": "her laptop"},
    ),
    answer=one(thing(**_ABOUT, token=text("Said once, and kept nowhere.")), {**_ALICE, "token": "rmcs_k3v9x2ab_…"}),  # nosec B105 # an example
)
REVOKE = Described(summary="Let nobody in with it any more", answer=one(thing(**_ABOUT), _ALICE))
LOG_IN = Described(
    summary="Begin a session of a browser",
    answer=one(
        thing(user=text(), roles=_ROLES, expires_in=number("Seconds.")),
        {"user": "alice", "roles": ["submitter"], "expires_in": 43200.0},
    ),
)
LOG_OUT = Described(summary="End the session", answer=one(thing(ended=flag("There was one.")), {"ended": True}))
TICKET = Described(
    summary="A ticket for one stream of events or one web socket",
    answer=one(
        thing(ticket=text("For ?ticket=, once."), expires_in=number("Seconds.")),
        {"ticket": "0pAq…", "expires_in": 30.0},
    ),
)
