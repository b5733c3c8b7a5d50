"""Models of the routes of items, jobs, actors, calls and the queue."""

from __future__ import annotations

import base64
import pickle
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, create_model

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY, Kind
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import (
    ID,
    ApiModel,
    Base64,
    optional,
    required,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import BYTES, BYTES_SCHEMA, Raw
from ray_multicluster_scheduler.control_plane.config.item_models import TaskModel
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits

NEXT_PAGE = "The cursor of the next page; null: this is the last page."
_CODE, _CLASS = pickle.dumps(len, protocol=4), pickle.dumps(dict, protocol=4)
_ARGUMENTS = pickle.dumps((("hello",), {}), protocol=4)
_UNNAMED: dict[str, Any] = {"kind": "job", "name": "nightly", "job": {"entrypoint": "python train.py"}}
NIGHTLY: dict[str, Any] = {"id": ID, **_UNNAMED}
_PAYLOADS = {"function_digest": digest_of(_CODE), "arguments_digest": digest_of(_ARGUMENTS)}
_MEMBER: dict[str, Any] = {"name": "len", "requirements": {"CPU": 1}, **_PAYLOADS}
_DIGESTS = {**_PAYLOADS, "function_digest": digest_of(_CLASS)}
_ACTOR = {"kind": "actor", "name": "dict", "actor": {"ray_name": "dict-1"}, **_DIGESTS}
_BLOBS = {digest_of(one): base64.b64encode(one).decode() for one in (_CODE, _CLASS, _ARGUMENTS)}


class Problem(ApiModel):
    """An RFC 9457 problem document, with fields of our own."""

    type: str = required()
    title: str = required("The phrase of the HTTP status.")
    status: int = required("The HTTP status.")
    detail: str = required("What happened, and what to do.")
    code: str = required("The error code, such as UNKNOWN_ITEM.")
    error: str = required("The class of the Python error, such as UnknownItemError.")
    message: str = required("What happened.")
    next_step: str | None = optional("What to do.")
    task_id: str | None = optional("The item concerned.")
    cluster: str | None = optional("The cluster concerned.")
    missing: list[str] = optional("Digests of missing payloads.")
    id: str = optional("Of a defect: the id of its log entry.")


class Refused(ApiModel):
    problem: Problem = required()


# ---- items: submit, read, wait


class Entry(ApiModel):
    task: TaskModel = required()
    objects: list[str] = optional("Ids of the items with values among its arguments, in their order; then the actors.")
    get_if_exists: bool = optional("Use a living actor of the same name instead.")


class _Shared(ApiModel):
    blobs: dict[str, Base64] = optional("Payloads that the service does not have yet, by digest.")
    client: str = optional("The mailbox that receives its changes (`/api/v1/wait`).")


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


class _Pooled(ApiModel):
    labels: dict[str, str] = optional("Its labels, if it has any.")
    pool: str = optional("Its pool, if it names one.")
    preemptible: bool = optional("Whether it may be preempted, if it says so.")
    min_runtime_s: float = optional("The seconds that each attempt runs before it may be preempted, if it has any.")


class Status(_Pooled):
    """An item as it is now."""

    id: str = required()
    state: TaskState | Literal["EXPIRED"] = required("EXPIRED if it ended long ago and was deleted.")
    kind: Kind = optional(example="job")
    name: str = optional(example="nightly")
    owner: str = optional(example="ann")
    attempt: int = optional("The number of the newest attempt; 0 before the first.", 1)
    cluster: str | None = optional(example="mac")
    number: int = optional("The number of its last step.", 4)
    at: float = optional("The time of that step, in seconds since 1970.", 1794700800.0)
    code: str = optional("The reason of its state, as a code.", "STARTED")
    sentence: str = optional("The reason as a sentence.", "runs on mac")
    outcome: dict[str, Any] = optional("The outcome, if it has ended.")
    actor: dict[str, Any] = optional()
    repeats: str = optional("The item that it retries.")
    repeated_by: list[str] = optional("Its newest retries, oldest first.")


class Row(_Pooled):
    """An item in a list."""

    id: str = required()
    kind: str = required()
    name: str = required()
    owner: str = required()
    state: TaskState = required()
    attempt: int = required()
    cluster: str | None = required()
    priority: float = required(example=0)
    submitted_at: float = required()
    started_at: float | None = required("When its last attempt was seen to start.")
    finished_at: float | None = required()


class ItemPage(ApiModel):
    items: list[Row] = required()
    after: str | None = required(NEXT_PAGE)


class Wait(ApiModel):
    client: str = required("A name that no other client has.", "me", min_length=1)
    mailbox: str | None = optional("The mailbox of the last answer.")
    add: list[str] = optional("Ids of items to watch.", [ID])
    heard: list[str] = optional("Ids of items with an acknowledged end.")
    timeout: float = optional("Seconds, at most 60.", 1, ge=0)


class Changes(ApiModel):
    mailbox: str = required("If it differs from the last answer, add all items again.", "b1")
    items: list[Status] = required()
    problems: dict[str, dict[str, Any]] = required("Errors by id of items that cannot be reported.")


class Explanation(_Pooled):
    id: str = required()
    state: str = required(example="QUEUED")
    code: str = required("The reason, as a code.", "WAITING")
    sentence: str = required("The reason as a sentence.", "waits for mac, which is full")
    unblocked_by: str | None = optional("What it waits for.", "something ends on mac")
    queue: dict[str, Any] | None = optional("Its position, and the items before it.")
    estimate: dict[str, Any] | None = optional("When it may start.")
    decision: dict[str, Any] | None = optional("The decision, with a verdict on each cluster.")
    notes: list[str] = optional("What else is worth knowing, such as crashes of workers.")
    attempts: list[dict[str, Any]] = optional()
    history: list[dict[str, Any]] = optional("Every step, oldest first.")


class Preemption(ApiModel):
    id: str = required()
    state: str = required(example="QUEUED")
    code: str = required("WOULD_PREEMPT, or why nothing is stopped for it.", "WOULD_PREEMPT")
    sentence: str = required("The same as a sentence.", "1 item would give way on mac")
    cluster: str | None = required("Where it would start.", "mac")
    victims: list[dict[str, Any]] = required(
        "The items that would stop.",
        [{"id": "train-7", "reason": "same_pool_priority", "priority": 0, "lost_s": 120.0}],
    )
    candidates: list[dict[str, Any]] = required(
        "Preemptible items that run, and why each may or may not give way; at most 50.",
        [
            {
                "id": "train-7",
                "cluster": "mac",
                "priority": 0,
                "lost_s": 120.0,
                "rank": 1,
                "code": "same_pool_priority",
                "sentence": "its priority is lower",
            }
        ],
    )
    total: int = required("The number of preemptible items that run.", 1)


SUBMISSIONS: dict[str, Any] = {
    "job": {"task": NIGHTLY},
    "without an id": {"task": _UNNAMED},
    "task": {"task": {"kind": "task", **_MEMBER}, "blobs": _BLOBS},
    "actor": {"task": _ACTOR, "blobs": _BLOBS},
    "gang": {"task": {"kind": "gang", "name": "both", "gang": {"members": [_MEMBER, _MEMBER]}}, "blobs": _BLOBS},
}
BATCHES: dict[str, Any] = {"two jobs": {"items": [{"task": NIGHTLY}, {"task": _UNNAMED}]}}
PICKLED = Raw("(pickled bytes)", BYTES, BYTES_SCHEMA)
OUTPUT_TEXT = Raw("epoch 1: loss 0.7\n", "text/plain")


# ---- items: change


class Reason(ApiModel):
    reason: str = optional("The reason, shown to users.", "the disk is full")


class Cancel(Reason):
    force: bool = optional("Kill it without an interrupt first.")


class Cancelled(ApiModel):
    id: str = required()
    state: str = required(example="CANCELLED")
    changed: bool = required("false: it had already ended.")


class Changed(ApiModel):
    """Items that are over are not changed: that is answered 409."""

    id: str = required()
    state: str = required("The present state.", "QUEUED")
    held: bool = required("It is held: no attempt of it starts.")
    changed: bool = required("false: it already was in this state.")


class Prioritised(Changed):
    """Items that are over are not changed: that is answered 409."""

    priority: float = optional(example=5)


class Priority(ApiModel):
    priority: float = required("Higher numbers go first.", 5, ge=-MAX_PRIORITY, le=MAX_PRIORITY)


class Forgotten(ApiModel):
    id: str = required()
    state: str = required(example="EXPIRED")


class Retry(ApiModel):
    id: str = optional("The id of the new item; generated if absent.", f"{ID}-again", min_length=1, max_length=256)
    anyway: bool = optional("Retry an item even if it succeeded, or was retried already.", True)


class Retried(Accepted):
    id: str = required("The id of the new item.", f"{ID}-again")
    repeats: str = required("The id of the retried item.", ID)


# ---- jobs


class JobInfo(_Pooled):
    """A job in the form of Ray's Jobs API."""

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


# ---- actors and calls of their methods


class ActorRow(_Pooled):
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
    id: str = required("The id of the call, chosen by its program.", "call-1")
    actor: str = required("The id of the actor.", "actor-7c1d")
    method: str = required(example="add")
    arguments: str = optional("The digest of the pickled (args, kwargs).", "5d41402a")
    objects: list[str] = optional()
    paths: bool = optional()
    first: bool = optional("false: it was sent before, and may have arrived.")
    mailbox: str = optional("The mailbox of the client at that time.")


class Calls(ApiModel):
    client: str = required("The client with the mailbox for the answers.", "me", min_length=1)
    calls: list[Call] = required(max_length=10_000)
    blobs: dict[str, Base64] = optional("Payloads that the service does not have yet, by digest.")


class CallId(ApiModel):
    id: str = required(example="call-1")


class AcceptedCalls(ApiModel):
    mailbox: str = required(example="b1")
    calls: list[CallId | Refused] = required("In the order of the calls.")


class CancelCall(ApiModel):
    force: bool = optional(example=False)


class CallExplanation(CallId):
    state: str = required()
    sentence: str = required(example="was sent to mac")


# ---- the queue and its owners


_LIMIT_TYPES = get_type_hints(OwnerLimits, include_extras=True)
_LIMITS: dict[str, Any] = {
    name: (_LIMIT_TYPES[name], optional(one.description or "", 10 if name == "max_running" else one.default))
    for name, one in OwnerLimits.model_fields.items()
}


class Lane(ApiModel):
    queue: str = required("task or job", "job")
    cluster: str | None = required("The preferred cluster; null: any.", None)
    waiting: int = required()


class Waiting(_Pooled):
    id: str = required()
    kind: str = required()
    name: str = required()
    owner: str = required()
    priority: float = required(example=0)
    state: str = required(example="QUEUED")
    submitted_at: float = required()
    waiting_since: float = required(
        "The time of its submission, or of the end of its last attempt that ran.", 1794700790.0
    )
    position: int | None = required(
        "The position in the queue; 1 is next. null: not in the queue, for example held.", 1
    )
    code: str = required("The reason, as a code.", "NO_CAPACITY")
    sentence: str = required("The reason as a sentence.", "mac: 1 CPU is not free on any one node")
    held: bool = required("It is held, and does not start.", False)


class Queue(ApiModel):
    depth: int = required("Number of waiting items.")
    states: dict[str, int] = required(example={"QUEUED": 1})
    kinds: dict[str, int] = required(example={"job": 1})
    owners: dict[str, int] = required(example={"ann": 1})
    on_clusters: dict[str, int] = required(
        "Number of items on clusters by state: DISPATCHING, RUNNING, LOST; without zeros.", {"RUNNING": 2}
    )
    lanes: list[Lane] = required("The queues of the scheduler, of all owners; empty in an answer for one owner.")
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
    running: int = required("Dispatched or running.", 2)
    limits: LimitsInForce = required()
    changed: bool = required("The limits were changed, and replace those of the settings.", False)
    paused: str | None = required("The reason of the pause of its queue; null: not paused.")


class Owners(ApiModel):
    owners: list[Owner] = required()
