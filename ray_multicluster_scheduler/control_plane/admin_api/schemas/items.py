"""What the routes of items, jobs, actors, calls and the queue take and answer."""

from __future__ import annotations

import base64
import pickle
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, create_model

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.item_fields import MOST_PRIORITY, Kind
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import (
    ID,
    ApiModel,
    Base64,
    optional,
    required,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import (
    BYTES,
    BYTES_SCHEMA,
    IDEMPOTENCY_KEY,
    Raw,
    RouteDocs,
)
from ray_multicluster_scheduler.control_plane.config.item_models import TaskModel
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits

NEXT_PAGE = "Ask with it for the next page; null: this is the last one."
_REASON = "Why, for those who ask."
_CODE, _CLASS = pickle.dumps(len, protocol=4), pickle.dumps(dict, protocol=4)
_ARGUMENTS = pickle.dumps((("hello",), {}), protocol=4)
_UNNAMED: dict[str, Any] = {"kind": "job", "name": "nightly", "job": {"entrypoint": "python train.py"}}
NIGHTLY: dict[str, Any] = {"id": ID, **_UNNAMED}
_PAYLOADS = {"function_digest": digest_of(_CODE), "arguments_digest": digest_of(_ARGUMENTS)}
_MEMBER: dict[str, Any] = {"name": "len", "requirements": {"CPU": 1}, **_PAYLOADS}
_ACTOR = {
    "kind": "actor",
    "name": "dict",
    "actor": {"ray_name": "dict-1"},
    **_PAYLOADS,
    "function_digest": digest_of(_CLASS),
}
_BLOBS = {digest_of(one): base64.b64encode(one).decode() for one in (_CODE, _CLASS, _ARGUMENTS)}


class Problem(ApiModel):
    """An RFC 9457 problem document, with fields of our own."""

    type: str = required()
    title: str = required("The words for that status in HTTP.")
    status: int = required("The HTTP status.")
    detail: str = required("What happened, and what to do.")
    code: str = required("A code for programs, such as UNKNOWN_ITEM.")
    error: str = required("The class of the Python error, such as UnknownItemError.")
    message: str = required("What happened.")
    next_step: str | None = optional("What to do.")
    task_id: str | None = optional("To which item.")
    cluster: str | None = optional("On which cluster.")
    missing: list[str] = optional("Digests of payloads that are not here.")
    id: str = optional("Of a defect: its id in the log.")


class Refused(ApiModel):
    problem: Problem = required()


# ---- items: submit, read, wait


class Entry(ApiModel):
    task: TaskModel = required()
    objects: list[str] = optional(
        "Ids of the items whose values are among its arguments, in their order; behind them the actors."
    )
    get_if_exists: bool = optional("A living actor of the same name is taken instead.")


class _Shared(ApiModel):
    blobs: dict[str, Base64] = optional("Payloads that are not here yet, by their digests.")
    client: str = optional("The mailbox that is to have its changes (`/api/v1/wait`).")


class Submission(Entry, _Shared):
    """An item."""


class Batch(_Shared):
    items: list[Entry] = required(max_length=10_000)


class Accepted(ApiModel):
    id: str = required()
    state: str = required(example="QUEUED")
    attempt: int = required(example=0)
    cluster: str | None = required(example=None)


class AcceptedBatch(ApiModel):
    items: list[Accepted | Refused] = required("In the order of the entries.")


class Status(ApiModel):
    """An item as it is now."""

    id: str = required()
    state: TaskState | Literal["EXPIRED"] = required("EXPIRED if it ended long ago and was forgotten.")
    kind: Kind = optional(example="job")
    name: str = optional(example="nightly")
    owner: str = optional(example="ann")
    attempt: int = optional("How often it was tried; 0 before the first time.", 1)
    cluster: str | None = optional(example="mac")
    number: int = optional("Of its last step.", 4)
    at: float = optional("When that was, in seconds since 1970.", 1794700800.0)
    code: str = optional("Why it is in this state, for programs.", "STARTED")
    sentence: str = optional("The same for people.", "runs on mac")
    outcome: dict[str, Any] = optional("How it ended, if it has.")
    actor: dict[str, Any] = optional()
    repeats: str = optional("The item that it is a retry of.")
    repeated_by: list[str] = optional("Its newest retries, oldest first.")


class Row(ApiModel):
    """An item in a list."""

    id: str = required()
    kind: str = required()
    name: str = required()
    owner: str = required()
    state: TaskState = required()
    attempt: int = required()
    cluster: str | None = required()
    priority: int = required()
    submitted_at: float = required()
    started_at: float | None = required("When its last attempt was seen to start.")
    finished_at: float | None = required()


class ItemPage(ApiModel):
    items: list[Row] = required()
    after: str | None = required(NEXT_PAGE)


class Wait(ApiModel):
    client: str = required("A name that no other client has.", "me", min_length=1)
    mailbox: str | None = optional("As in the last answer.")
    add: list[str] = optional("Items whose changes are wanted.", [ID])
    heard: list[str] = optional("Items whose end arrived.")
    timeout: float = optional("Seconds, 60 at the most.", 1, ge=0)


class Changes(ApiModel):
    mailbox: str = required("If it is another one than in the last answer, name all items again.", "b1")
    items: list[Status] = required()
    problems: dict[str, dict[str, Any]] = required("By id: items that cannot be reported, and why.")


class Explanation(ApiModel):
    id: str = required()
    state: str = required(example="QUEUED")
    code: str = required("Why, for programs.", "WAITING")
    sentence: str = required("Why, for people.", "waits for mac, which is full")
    unblocked_by: str | None = optional("What would let it go on.", "something ends on mac")
    queue: dict[str, Any] | None = optional("Its position, and what is before it.")
    estimate: dict[str, Any] | None = optional("When it may start.")
    decision: dict[str, Any] | None = optional("The judgement on each cluster.")
    attempts: list[dict[str, Any]] = optional()
    history: list[dict[str, Any]] = optional("Every step, oldest first.")


SUBMIT = RouteDocs(
    "Submit one item",
    Accepted,
    Submission,
    examples={
        "job": {"task": NIGHTLY},
        "without an id": {"task": _UNNAMED},
        "task": {"task": {"kind": "task", **_MEMBER}, "blobs": _BLOBS},
        "actor": {"task": _ACTOR, "blobs": _BLOBS},
        "gang": {"task": {"kind": "gang", "name": "both", "gang": {"members": [_MEMBER, _MEMBER]}}, "blobs": _BLOBS},
    },
    headers=[IDEMPOTENCY_KEY],
)
SUBMIT_BATCH = RouteDocs(
    "Submit many items",
    AcceptedBatch,
    Batch,
    examples={"two jobs": {"items": [{"task": NIGHTLY}, {"task": _UNNAMED}]}},
    headers=[IDEMPOTENCY_KEY],
)
GET = RouteDocs("One item", Status)
LIST = RouteDocs("Many items, newest first, in pages", ItemPage)
WAIT = RouteDocs("Changes of many items, as a long poll", Changes, Wait)
EXPLAIN = RouteDocs("Why it is where it is", Explanation)
RESULT = RouteDocs(
    "Its value",
    Raw("(pickled bytes)", BYTES, BYTES_SCHEMA),
    others={204: ("It succeeded and has no value, as a job.", None)},
)
LOGS = RouteDocs("Its output", Raw("epoch 1: loss 0.7\n", "text/plain"))


# ---- items: change


class Reason(ApiModel):
    reason: str = optional(_REASON, "the disk is full")


class Cancel(Reason):
    force: bool = optional("Without the polite interrupt.")


class Cancelled(ApiModel):
    id: str = required()
    state: str = required(example="CANCELLED")
    changed: bool = required("false: it was over already.")


class Changed(ApiModel):
    """Items that are over are not changed: that is answered 409."""

    id: str = required()
    state: str = required("In which it is now.", "QUEUED")
    held: bool = required("It is held: neither it nor its next attempt starts.")
    changed: bool = required("false: it was so already.")


class Prioritised(Changed):
    """Items that are over are not changed: that is answered 409."""

    priority: int = optional(example=5)


class Priority(ApiModel):
    priority: int = required("Higher numbers go first.", 5, ge=-MOST_PRIORITY, le=MOST_PRIORITY)


class Forgotten(ApiModel):
    id: str = required()
    state: str = required(example="EXPIRED")


class Retry(ApiModel):
    id: str = optional("Of the new item; made if there is none.", f"{ID}-again", min_length=1, max_length=256)
    anyway: bool = optional("Also one that succeeded, or was repeated already.", True)


class Retried(Accepted):
    id: str = required("Of the new item.", f"{ID}-again")
    repeats: str = required("Of the old one.", ID)


CANCEL = RouteDocs("Cancel an item", Cancelled, Cancel)
HOLD = RouteDocs("Keep an item from starting", Changed, Reason)
RELEASE = RouteDocs("Let an item start again", Changed)
PRIORITY = RouteDocs("Change its priority", Prioritised, Priority)
FORGET = RouteDocs("Forget an item that is over", Forgotten)
RETRY = RouteDocs("Submit an item that is over once more", Retried, Retry, headers=[IDEMPOTENCY_KEY])


# ---- jobs


class JobInfo(ApiModel):
    """A job in Ray's words."""

    job_id: str = required(example=ID)
    status: str = required(example="RUNNING")
    message: str = required(example="runs on mac")
    entrypoint: str = optional(example="python train.py")
    metadata: dict[str, str] = optional(example={})
    cluster: str | None = optional(example="mac")
    attempt: int = optional(example=1)
    ray_submission_id: str | None = optional(example=f"rmcs-1a2b-{ID}-1")
    submitted_at: float = optional(example=1794700790.0)
    started_at: float | None = optional(example=1794700800.0)
    finished_at: float | None = optional(example=None)


class JobPage(ApiModel):
    jobs: list[JobInfo] = required()
    after: str | None = required(NEXT_PAGE)


JOBS = RouteDocs("Jobs that are remembered, newest first, in pages", JobPage)
JOB = RouteDocs("A job in Ray's words", JobInfo)


# ---- actors and calls of their methods


class ActorRow(ApiModel):
    id: str = required(example="actor-7c1d")
    name: str | None = required(example="counter")
    state: str = required()
    cluster: str | None = required()
    attempt: int = required()
    lifetime: str | None = required()
    message: str = required(example="is ready")
    class_name: str = optional(example="Counter", alias="class")


class ActorPage(ApiModel):
    actors: list[ActorRow] = required()
    after: str | None = required(NEXT_PAGE)


class Call(ApiModel):
    id: str = required("Of the call, made by its program.", "call-1")
    actor: str = required("The id of the actor.", "actor-7c1d")
    method: str = required(example="add")
    arguments: str = optional("The digest of the pickled (args, kwargs).", "5d41402a")
    objects: list[str] = optional()
    paths: bool = optional()
    first: bool = optional("false: it was sent before, and it is not known whether it arrived.")
    mailbox: str = optional("The mailbox that the client had then.")


class Calls(ApiModel):
    client: str = required("The mailbox that the answers go to.", "me", min_length=1)
    calls: list[Call] = required(max_length=10_000)
    blobs: dict[str, Base64] = optional("Payloads that are not here yet, by their digests.")


class CallId(ApiModel):
    id: str = required(example="call-1")


class CallsTaken(ApiModel):
    mailbox: str = required(example="b1")
    calls: list[CallId | Refused] = required("In the order of the calls.")


class CancelCall(ApiModel):
    force: bool = optional(example=False)


class CallExplanation(CallId):
    state: str = required()
    sentence: str = required(example="was sent to mac")


ACTORS = RouteDocs("Actors that are not over, or ended lately", ActorPage)
ACTOR = RouteDocs("A living actor by its name", Status)
CALL = RouteDocs("Call methods of actors", CallsTaken, Calls)
CANCEL_CALL = RouteDocs("Cancel a call", CallId, CancelCall)
EXPLAIN_CALL = RouteDocs("Why a call is not answered yet", CallExplanation)
CALL_RESULT = RouteDocs("The answer to a call", Raw("(pickled bytes)", BYTES, BYTES_SCHEMA))


# ---- the queue and its owners


_LIMIT_TYPES = get_type_hints(OwnerLimits, include_extras=True)
_LIMITS: dict[str, Any] = {
    name: (_LIMIT_TYPES[name], optional(one.description or "", 10 if name == "max_running" else one.default))
    for name, one in OwnerLimits.model_fields.items()
}


class Lane(ApiModel):
    queue: str = required("task or job", "job")
    cluster: str | None = required("Preferred; null: any.", None)
    waiting: int = required()


class Waiting(ApiModel):
    id: str = required()
    kind: str = required()
    name: str = required()
    owner: str = required()
    priority: int = required(example=0)
    state: str = required(example="QUEUED")
    submitted_at: float = required()
    waiting_since: float = required("Since its submission, or since its last attempt that ran was over.", 1794700790.0)
    position: int | None = required("In the queue; 1 is next. null: it is not in the queue, as if it is held.", 1)
    code: str = required("Why it waits, for programs.", "NO_CAPACITY")
    sentence: str = required("The same for people.", "mac: 1 CPU is not free on any one node")
    held: bool = required("It is held, and does not start.", False)


class Queue(ApiModel):
    depth: int = required("How many wait.")
    states: dict[str, int] = required(example={"QUEUED": 1})
    kinds: dict[str, int] = required(example={"job": 1})
    owners: dict[str, int] = required(example={"ann": 1})
    on_clusters: dict[str, int] = required(
        "How many wait no more, by state: DISPATCHING, RUNNING and LOST, where there are any.", {"RUNNING": 2}
    )
    lanes: list[Lane] = required("Of all owners, as the scheduler has them; empty where one owner is asked for.")
    waiting: list[Waiting] = required()
    after: str | None = required(NEXT_PAGE)


Limits: Any = create_model(
    "Limits",
    __base__=ApiModel,
    __doc__="null: no limit. A limit that is not given has its default: none, and weight 1.",
    **_LIMITS,
)


class LimitsInForce(Limits):  # type: ignore[misc]  # made at run time
    """null: no limit."""

    model_config = ConfigDict(json_schema_extra={"required": list(OwnerLimits.model_fields)})


class Owner(ApiModel):
    owner: str = required()
    waiting: int = required()
    running: int = required("On a cluster, or on the way there.", 2)
    limits: LimitsInForce = required()
    changed: bool = required("The limits were changed, and hold instead of those in the settings.", False)
    paused: str | None = required("Why its queue is paused; null: it is not.")


class Owners(ApiModel):
    owners: list[Owner] = required()


QUEUE = RouteDocs("What waits, and why", Queue)
OWNERS = RouteDocs("Owners: what they have, and may have", Owners)
OWNER = RouteDocs("One owner", Owner)
SET_LIMITS = RouteDocs("Change the limits of an owner", Owner, Limits)
RESET_LIMITS = RouteDocs("Take the limits of the settings again", Owner)
