"""What the routes of items take and answer."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model.item_fields import MOST_PRIORITY
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import (
    BYTES,
    IDEMPOTENCY_KEY,
    Described,
    Said,
    one,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    ANYTHING,
    by_name,
    flag,
    many,
    named,
    number,
    or_null,
    text,
    thing,
    whole,
)

ID = "nightly-2026-11-15"
NIGHTLY: dict[str, Any] = {"id": ID, "kind": "job", "name": "nightly", "job": {"entrypoint": "python train.py"}}
_UNNAMED = {key: value for key, value in NIGHTLY.items() if key != "id"}
_CODE = pickle.dumps(len, protocol=4)
_CLASS = pickle.dumps(dict, protocol=4)
_ARGUMENTS = pickle.dumps((("hello",), {}), protocol=4)
_TASK: dict[str, Any] = {
    "kind": "task",
    "name": "len",
    "requirements": {"CPU": 1},
    "function_digest": digest_of(_CODE),
    "arguments_digest": digest_of(_ARGUMENTS),
}
_AN_ACTOR = {
    **_TASK,
    "kind": "actor",
    "name": "dict",
    "requirements": {},
    "actor": {"ray_name": "dict-1"},
    "function_digest": digest_of(_CLASS),
}
_MEMBER = {key: value for key, value in _TASK.items() if key != "kind"}
_PICKLED = {digest_of(one): base64.b64encode(one).decode() for one in (_CODE, _CLASS, _ARGUMENTS)}
_BLOBS = by_name(text(contentEncoding="base64"), "Payloads that are not here yet, by their digests.")
_OBJECTS = many(text(), "Names of the values that stand among its arguments, in their order; behind them the actors.")
_CLIENT = text("Whose mailbox is to tell of it (`/api/v1/wait`).")
_ENTRY = {"objects": _OBJECTS, "get_if_exists": flag("A living actor of the same name will do.")}
_SHORT = thing(
    id=text(),
    state=text(),
    attempt=whole(),
    cluster=or_null(text()),
)
_QUEUED = {"id": ID, "state": "QUEUED", "attempt": 0, "cluster": None}
_REASON = text("Why, for whoever asks.")

SUBMIT = Described(
    summary="Submit one item",
    body=Said(
        thing("An item.", task=named("Task"), maybe={**_ENTRY, "blobs": _BLOBS, "client": _CLIENT}),
        {
            "job": {"task": NIGHTLY},
            "without an id": {"task": _UNNAMED},
            "task": {"task": _TASK, "blobs": _PICKLED},
            "actor": {"task": _AN_ACTOR, "blobs": _PICKLED},
            "gang": {
                "task": {"kind": "gang", "name": "both", "gang": {"members": [_MEMBER, _MEMBER]}},
                "blobs": _PICKLED,
            },
        },
    ),
    answer=one(_SHORT, _QUEUED),
    headers=[IDEMPOTENCY_KEY],
)

SUBMIT_BATCH = Described(
    summary="Submit many items",
    body=Said(
        thing(
            items=many(thing(task=named("Task"), maybe=_ENTRY), maxItems=10_000),
            maybe={"blobs": _BLOBS, "client": _CLIENT},
        ),
        {"two jobs": {"items": [{"task": NIGHTLY}, {"task": _UNNAMED}]}},
    ),
    answer=one(
        thing(items=many({"anyOf": [_SHORT, thing(problem=named("Problem"))]}, "In the order of what was sent.")),
        {"items": [_QUEUED, {**_QUEUED, "id": "1f0e2ab9c3d84c5e9a7b6c5d4e3f2a1b"}]},
    ),
    headers=[IDEMPOTENCY_KEY],
)

GET = Described(
    summary="One item",
    answer=one(
        named("Status"),
        {
            "id": ID,
            "state": "RUNNING",
            "attempt": 1,
            "cluster": "mac",
            "number": 4,
            "at": 1794700800.0,
            "code": "STARTED",
            "sentence": "runs on mac",
            "kind": "job",
            "name": "nightly",
            "owner": "",
        },
    ),
)

LIST = Described(
    summary="Many items, newest first, in pages",
    answer=one(
        thing(items=many(named("Row")), after=or_null(text("Ask with it for the next page; null: there is none."))),
        {
            "items": [
                {
                    "id": ID,
                    "kind": "job",
                    "name": "nightly",
                    "owner": "",
                    "state": "RUNNING",
                    "attempt": 1,
                    "cluster": "mac",
                    "priority": 0,
                    "submitted_at": 1794700790.0,
                    "started_at": 1794700800.0,
                    "finished_at": None,
                }
            ],
            "after": None,
        },
    ),
)

WAIT = Described(
    summary="EventPublisher of many items, as a long poll",
    body=one(
        thing(
            client=text("Any name that nobody else has.", minLength=1),
            maybe={
                "mailbox": or_null(text("What the last answer said.")),
                "add": many(text(), "Items to be told of."),
                "heard": many(text(), "Items whose end was heard."),
                "timeout": number("Seconds, 60 at the most.", minimum=0),
            },
        ),
        {"client": "me", "add": [ID], "timeout": 1},
    ),
    answer=one(
        thing(
            mailbox=text("If it is another one than the last, name all items again."),
            items=many(named("Status")),
            problems=by_name(ANYTHING, "By id: what cannot be told of, and why."),
        ),
        {
            "mailbox": "b1",
            "items": [{"id": ID, "state": "RUNNING", "attempt": 1, "cluster": "mac"}],
            "problems": {},
        },
    ),
)

CANCEL = Described(
    summary="Ask for its end",
    body=one(thing(maybe={"reason": _REASON, "force": flag("Without the polite interrupt.")}), {"reason": "too late"}),
    answer=one(
        thing(id=text(), state=text(), changed=flag("false: it was over already.")),
        {"id": ID, "state": "CANCELLED", "changed": True},
    ),
)
_NOW = thing(
    "Of what is over nothing is changed: that is answered 409.",
    id=text(),
    state=text("In which it is now."),
    held=flag("Somebody keeps it, or its next attempt, from starting."),
    changed=flag("false: so it was already."),
)
HOLD = Described(
    summary="Let it not start",
    body=one(thing(maybe={"reason": _REASON}), {"reason": "the disk is full"}),
    answer=one(_NOW, {"id": ID, "state": "QUEUED", "held": True, "changed": True}),
)
RELEASE = Described(
    summary="Let it start again", answer=one(_NOW, {"id": ID, "state": "QUEUED", "held": False, "changed": True})
)
PRIORITY = Described(
    summary="Change its priority",
    body=one(
        thing(priority=whole("Higher numbers go first.", minimum=-MOST_PRIORITY, maximum=MOST_PRIORITY)),
        {"priority": 5},
    ),
    answer=one(
        {**_NOW, "properties": {**_NOW["properties"], "priority": whole()}},
        {"id": ID, "state": "QUEUED", "held": False, "changed": True, "priority": 5},
    ),
)

EXPLAIN = Described(
    summary="Why it is where it is",
    answer=one(
        thing(
            id=text(),
            state=text(),
            code=text("Why, for programs."),
            sentence=text("Why, for people."),
            maybe={
                "unblocked_by": or_null(text("What would let it go on.")),
                "queue": or_null({**ANYTHING, "description": "Its position, and who is before it."}),
                "estimate": or_null({**ANYTHING, "description": "When it may start."}),
                "decision": or_null({**ANYTHING, "description": "What was said of each cluster."}),
                "attempts": many(ANYTHING),
                "history": many(ANYTHING, "Every step, oldest first."),
            },
        ),
        {
            "id": ID,
            "state": "QUEUED",
            "code": "WAITING",
            "sentence": "waits for mac, which is full",
            "unblocked_by": "something ends on mac",
            "history": [],
        },
    ),
)

RESULT = Described(
    summary="Its value",
    answer=one({"type": "string", "format": "binary"}, "(pickled bytes)", BYTES),
    others={204: ("It succeeded and has no value, as a job.", None)},
)
LOGS = Described(summary="What it printed", answer=one(text(), "epoch 1: loss 0.7\n", "text/plain"))

FORGET = Described(
    summary="Forget what is over",
    answer=one(thing(id=text(), state=text("EXPIRED")), {"id": ID, "state": "EXPIRED"}),
)
RETRY = Described(
    summary="Submit what is over once more",
    body=Said(
        thing(
            maybe={
                "id": text("Of the new item; made if there is none.", minLength=1, maxLength=256),
                "anyway": flag("Also one that succeeded, or was repeated already."),
            }
        ),
        {"again": {"id": f"{ID}-again", "anyway": True}},
    ),
    answer=one(
        thing(id=text("Of the new item."), repeats=text("Of the old one."), state=text()),
        {"id": f"{ID}-again", "repeats": ID, "state": "QUEUED", "attempt": 0, "cluster": None},
    ),
    headers=[IDEMPOTENCY_KEY],
)
