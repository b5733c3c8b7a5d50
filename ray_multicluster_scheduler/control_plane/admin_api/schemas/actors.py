"""What the routes of actors and calls take and answer."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import BYTES, Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    by_name,
    flag,
    many,
    named,
    or_null,
    text,
    thing,
    whole,
)

_ACTOR = "actor-7c1d"
LIST = Described(
    summary="Actors that are not over, or were so lately",
    answer=one(
        thing(
            actors=many(
                thing(
                    id=text(),
                    name=or_null(text()),
                    state=text(),
                    cluster=or_null(text()),
                    attempt=whole(),
                    lifetime=or_null(text()),
                    message=text(),
                    maybe={"class": text()},
                )
            ),
            after=or_null(text("Ask with it for the next page; null: there is none.")),
        ),
        {
            "actors": [
                {
                    "id": _ACTOR,
                    "name": "counter",
                    "class": "Counter",
                    "state": "RUNNING",
                    "cluster": "mac",
                    "attempt": 1,
                    "lifetime": None,
                    "message": "is ready",
                }
            ],
            "after": None,
        },
    ),
)
BY_NAME = Described(
    summary="A living actor by its name",
    answer=one(
        named("Status"),
        {"id": _ACTOR, "state": "RUNNING", "attempt": 1, "cluster": "mac", "kind": "actor", "name": "Counter"},
    ),
)
CALL = Described(
    summary="Call methods of actors",
    body=one(
        thing(
            client=text("Whose mailbox the answers come to.", minLength=1),
            calls=many(
                thing(
                    id=text("Of the call, made by its program."),
                    actor=text("The id of the actor."),
                    method=text(),
                    maybe={
                        "arguments": text("The digest of the pickled (args, kwargs)."),
                        "objects": many(text()),
                        "paths": flag(),
                        "first": flag("false: it was sent before, and nobody knows whether it arrived."),
                        "mailbox": text("The one that the client had then."),
                    },
                ),
                maxItems=10_000,
            ),
            maybe={"blobs": by_name(text(contentEncoding="base64"))},
        ),
        {"client": "me", "calls": [{"id": "call-1", "actor": _ACTOR, "method": "add", "arguments": "5d41402a"}]},
    ),
    answer=one(
        thing(
            mailbox=text(),
            calls=many({"anyOf": [thing(id=text()), thing(problem=named("Problem"))]}, "In the order of the calls."),
        ),
        {"mailbox": "b1", "calls": [{"id": "call-1"}]},
    ),
)
CANCEL_CALL = Described(
    summary="Ask for the end of a call",
    body=one(thing(maybe={"force": flag()}), {"force": False}),
    answer=one(thing(id=text()), {"id": "call-1"}),
)
EXPLAIN_CALL = Described(
    summary="Why a call is not answered yet",
    answer=one(
        thing(id=text(), state=text(), sentence=text()),
        {"id": "call-1", "state": "RUNNING", "sentence": "was sent to mac"},
    ),
)
CALL_RESULT = Described(
    summary="The answer to a call",
    answer=one({"type": "string", "format": "binary"}, "(pickled bytes)", BYTES),
)
