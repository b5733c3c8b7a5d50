"""What a service and its clients say to each other: JSON, with bytes in base64. Nothing in here is ever unpickled by
the service."""

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
"""Blobs up to this size travel with what names them; others by themselves."""

_RESULT = tuple(one.name for one in fields(CallResult) if one.name != "payload")
_COMPLETE = tuple(one.name for one in fields(Complete))


def bytes_to_wire(blobs: Mapping[str, bytes]) -> dict[str, str]:
    return {digest: b64encode(data).decode("ascii") for digest, data in blobs.items()}


def bytes_from_wire(said: Mapping[str, str]) -> dict[str, bytes]:
    """Raises ValueError for what is not base64, or not what its name says."""
    blobs = {digest: b64decode(text, validate=True) for digest, text in said.items()}
    for digest, data in blobs.items():
        if digest_of(data) != digest:
            raise ValueError(f"the blob that is called {digest} is another one")
    return blobs


def status_to_wire(item: Promise) -> dict[str, Any]:
    """An item as it is now; with its outcome, if it is over."""
    step = item.transition if isinstance(item, Item) else None
    status: dict[str, Any] = {
        "id": item.id,
        "state": str(item.state),
        "attempt": item.attempt,
        "cluster": item.cluster,
    }
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
    """A value that is too large to travel along is only named."""
    result, told = outcome.result, {}
    if result is not None:
        told = {name: value for name in _RESULT if (value := getattr(result, name)) not in (None, "")}
        if result.payload is not None:
            if len(result.payload) <= INLINE_BYTES:
                told["payload"] = b64encode(result.payload).decode("ascii")
            else:
                told["digest"] = digest_of(result.payload)
    return {
        "completion": {name: getattr(outcome.completion, name) for name in _COMPLETE},
        "result": told or None,
        "origin": None if outcome.origin is None else outcome_to_wire(outcome.origin),
    }


def named_payloads(said: Mapping[str, Any]) -> list[str]:
    """The digests of values that did not travel along."""
    named = [] if not said["result"] or "digest" not in said["result"] else [str(said["result"]["digest"])]
    return named if said["origin"] is None else [*named, *named_payloads(said["origin"])]


def outcome_from_wire(said: Mapping[str, Any], fetched: Mapping[str, bytes]) -> Outcome:
    """``fetched`` has what :func:`named_payloads` names, but for what was forgotten."""
    done = dict(said["completion"])
    completion = Complete(**{**done, "state": TaskState(done["state"])})
    result = None
    if said["result"]:
        told = {name: value for name, value in said["result"].items() if name in _RESULT}
        if "failure" in told:
            told["failure"] = FailureClass(told["failure"])
        payload = None
        if "payload" in said["result"]:
            payload = b64decode(said["result"]["payload"])
        elif "digest" in said["result"]:
            payload = fetched.get(said["result"]["digest"])
            if payload is None:
                told["code"] = VALUE_FORGOTTEN
        result = CallResult(**told, payload=payload)
    origin = None if said["origin"] is None else outcome_from_wire(said["origin"], fetched)
    return Outcome(completion, result, origin)


def public_error_name(kind: type[SchedulerError]) -> str:
    """A name that everybody has: of a class that only a service knows, that of its nearest base."""
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


def missing_blobs(said: Mapping[str, Any]) -> Sequence[str]:
    """Which of the blobs that were named the service does not have."""
    return [str(one) for one in said.get("missing") or ()]
