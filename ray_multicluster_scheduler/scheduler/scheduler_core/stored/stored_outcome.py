"""How attempts and items ended, as records of the store, and back."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.store.records import Outcome, StoredItem
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import COMPLETION

_VERSION = 1
_TOLD = tuple(one.name for one in fields(CallResult) if one.name != "payload")
_VALUE = "value"
"""In the document of one that came with a value: its name goes when the value does."""


def outcome_of(result: CallResult) -> Outcome:
    """An attempt's end. Its value is not in here, only its name."""
    told = {name: value for name in _TOLD if (value := getattr(result, name)) not in (None, "")}
    digest = None if result.payload is None else digest_of(result.payload)
    if digest is not None:
        told[_VALUE] = True
    document = json.dumps({"v": _VERSION, **told}, separators=(",", ":")).encode()
    return Outcome(result.task_id, result.attempt, document, digest)


def result_of(stored: Outcome, payload: bytes | None) -> CallResult:
    """The same again, with its value."""
    told: dict[str, Any] = {name: value for name, value in json.loads(stored.document).items() if name in _TOLD}
    if "failure" in told:
        told["failure"] = FailureClass(told["failure"])
    return CallResult(**told, payload=payload)


def had_value(stored: Outcome) -> bool:
    """Did it come with one, whether or not that is still kept?"""
    return stored.digest is not None or _VALUE in json.loads(stored.document)


def completion_of(stored: StoredItem) -> Complete | None:
    """The brain's last word of an item; None while it is not over."""
    if not stored.status.state.terminal:
        return None
    said = json.loads(stored.status.rest).get(COMPLETION)
    if said is None:  # written by one that did not keep it
        return Complete(stored.new.id, stored.status.state, stored.status.attempt, stored.status.cluster)
    return Complete(**{**said, "state": TaskState(said["state"])})
