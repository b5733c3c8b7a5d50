"""Codec of the messages between a service and its clients: JSON, with bytes in base64.

The HTTP routes encode items, outcomes and errors with it, and the client library decodes them. The service never
unpickles a payload.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import VALUE_FORGOTTEN
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition

INLINE_BYTES = 32 * 1024
"""Blobs up to this size are sent in the message that names them; others in requests of their own."""

_RESULT = tuple(one.name for one in fields(CallResult) if one.name not in ("payload", "digest"))
_COMPLETE = tuple(one.name for one in fields(Complete))


def bytes_to_wire(blobs: Mapping[str, bytes]) -> dict[str, str]:
    return {digest: b64encode(data).decode("ascii") for digest, data in blobs.items()}


def bytes_from_wire(body: Mapping[str, str]) -> dict[str, bytes]:
    """Raises ValueError for invalid base64, and for a blob that does not have the digest that names it."""
    blobs = {digest: b64decode(text, validate=True) for digest, text in body.items()}
    for digest, data in blobs.items():
        if digest_of(data) != digest:
            raise ValueError(f"the content of blob {digest} has another digest")
    return blobs


def status_to_wire(item: Promise) -> dict[str, Any]:
    """The present state of an item, with its outcome if it is over."""
    step = item.transition if isinstance(item, Item) else None
    status: dict[str, Any] = {"id": item.id, "state": str(item.state)}
    status.update(attempt=item.attempt, cluster=item.cluster)
    if step is not None:
        status.update(number=step.number, at=step.at, code=step.code, sentence=step.sentence)
    if item.outcome is not None:
        status["outcome"] = outcome_to_wire(item.outcome)
    return status


def step_from_wire(status: Mapping[str, Any]) -> Transition:
    return Transition(
        status["id"],
        int(status.get("number", 1)),
        TaskState(status["state"]),
        int(status["attempt"]),
        float(status.get("at", 0.0)),
        status.get("code", ""),
        status.get("sentence", ""),
        status["cluster"],
    )


def outcome_to_wire(outcome: Outcome) -> dict[str, Any]:
    """A value of more than INLINE_BYTES is named by its digest."""
    result, body = outcome.result, {}
    if result is not None:
        body = {name: value for name in _RESULT if (value := getattr(result, name)) not in (None, "")}
        if result.payload is not None:
            if len(result.payload) <= INLINE_BYTES:
                body["payload"] = b64encode(result.payload).decode("ascii")
            else:
                body["digest"] = result.digest or digest_of(result.payload)
    return {
        "completion": {name: getattr(outcome.completion, name) for name in _COMPLETE},
        "result": body or None,
        "origin": None if outcome.origin is None else outcome_to_wire(outcome.origin),
    }


def named_payloads(body: Mapping[str, Any]) -> list[str]:
    """The digests of values that are not in the message."""
    named = [] if not body["result"] or "digest" not in body["result"] else [str(body["result"]["digest"])]
    return named if body["origin"] is None else [*named, *named_payloads(body["origin"])]


def outcome_from_wire(body: Mapping[str, Any], fetched: Mapping[str, bytes]) -> Outcome:
    """``fetched`` has the values of :func:`named_payloads`, except forgotten ones."""
    done = dict(body["completion"])
    completion = Complete(**{**done, "state": TaskState(done["state"])})
    result = None
    if body["result"]:
        known = {name: value for name, value in body["result"].items() if name in _RESULT}
        if "failure" in known:
            known["failure"] = FailureClass(known["failure"])
        payload = None
        if "payload" in body["result"]:
            payload = b64decode(body["result"]["payload"])
        elif "digest" in body["result"]:
            payload = fetched.get(body["result"]["digest"])
            if payload is None:
                known["code"] = VALUE_FORGOTTEN
        result = CallResult(**known, payload=payload)
    origin = None if body["origin"] is None else outcome_from_wire(body["origin"], fetched)
    return Outcome(completion, result, origin)


def public_error_name(kind: type[SchedulerError]) -> str:
    """The name of its nearest public class: clients do not have the private classes of a service."""
    names = (one.__name__ for one in kind.__mro__ if getattr(errors, one.__name__, None) is one)
    return str(next(names))


def problem_to_wire(error: SchedulerError) -> dict[str, Any]:
    return {
        "error": public_error_name(type(error)),
        "message": error.message,
        "task_id": error.task_id,
        "cluster": error.cluster,
        "next_step": error.next_step,
    }


def missing_blobs(body: Mapping[str, Any]) -> Sequence[str]:
    """The named blobs that the service does not have."""
    return [str(one) for one in body.get("missing") or ()]
