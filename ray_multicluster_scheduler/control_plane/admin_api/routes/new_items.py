"""Ids and idempotency keys of submitted items: a repeated submission makes no second item."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.idempotency import check_same_item, key_conflict
from ray_multicluster_scheduler.control_plane.runtime.item import Item

_HEADER = b"idempotency-key"
_MAX_KEY_LENGTH = 255


def new_id(kind: object) -> str:
    """A new unique id."""
    return f"{kind}-{uuid.uuid4().hex}"


def with_id(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds an id where there is none. A repeat is then another item, unless it has an idempotency key."""
    return task if "id" in task else {**task, "id": new_id(str(task.get("kind"))[:20].replace("/", ""))}


def missing_task_error() -> ConfigurationError:
    return ConfigurationError(
        "The submission has no task, which describes the item.",
        next_step='send {"task": {"kind": "job", "job": {"entrypoint": …}}}',
    )


def idempotency_key_of(request: Request) -> str | None:
    """The value of the header Idempotency-Key. Raises ConfigurationError for one that is no key."""
    for name, value in request.scope["headers"]:
        if name == _HEADER:
            key: str = value.decode("latin-1")
            if not 0 < len(key) <= _MAX_KEY_LENGTH or not key.isascii():
                raise ConfigurationError(
                    f"Idempotency-Key is {key[:100]!r}.", next_step=f"give 1 to {_MAX_KEY_LENGTH} characters of ASCII"
                )
            return key
    return None


def with_key(task: TaskDescription, key: str) -> TaskDescription:
    """Raises ConfigurationError if the task already has another key."""
    if task.idempotency_key is not None and task.idempotency_key != key:
        raise ConfigurationError(
            f"{task.kind} {task.id} has the idempotency_key {task.idempotency_key!r}, but the header Idempotency-Key "
            f"is {key!r}.",
            task_id=task.id,
            next_step="give only one of them, or the same in both",
        )
    return replace(task, idempotency_key=key)


def check_key(submitted: TaskDescription, item: Item, key: str, *, named: bool) -> None:
    """Raises ConfigurationError if the key was used before, for something else, or for another id than the one that the
    request ``named``."""
    if item.id == submitted.id:
        return
    if named and item.task.idempotency_key == submitted.idempotency_key:
        raise key_conflict(submitted.id, item.id, key)
    check_same_item(submitted, item.task, header=True)
