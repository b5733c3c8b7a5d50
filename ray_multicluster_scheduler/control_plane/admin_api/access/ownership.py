"""Ownership of items: checks of requests by callers who may see or steer only their own items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.control_characters import check_identifiers
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError
from ray_multicluster_scheduler.common.redaction import mask_text
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.explanation import unknown_item
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import (
    OwnershipCheck,
    ServiceRuntime,
    SubmitRequest,
)

HIDDEN_ID = "another owner's item"
LimitsOf: TypeAlias = Callable[[str], OwnerLimits]
"""The limits of an owner in force."""


async def owner_of(runtime: ServiceRuntime, item_id: str) -> str | None:
    """The owner of an item or gang member; None if it is unknown or forgotten."""
    named = await runtime.resolve_id(item_id)
    return None if named is None else named.owner


def may_read_value(caller: Caller, promise: Promise) -> bool:
    """May the caller read the value, and not only the state? The value of a call is its client's."""
    return caller.may_steer(promise.task.owner) if isinstance(promise, Item) else caller.submits


def without_values(status: dict[str, Any]) -> dict[str, Any]:
    """The status of an item for a caller who may not read its value."""
    return {**status, "outcome": _without_payload(status["outcome"])} if "outcome" in status else status


def _without_payload(outcome: dict[str, Any]) -> dict[str, Any]:
    result, origin = outcome["result"], outcome["origin"]
    return {
        **outcome,
        "result": result and {name: value for name, value in result.items() if name not in ("payload", "digest")},
        "origin": origin and _without_payload(origin),
    }


# ---- submitting


def with_owner(caller: Caller, limits_of: LimitsOf, request: SubmitRequest) -> SubmitRequest:
    """The request with its owner, which is the caller by default. Raises NotAllowedError for another owner than the
    token's user, or too high a priority, ConfigurationError for an id, an owner or a key that is more than a line."""
    task = request.task
    check_identifiers(task)
    if not task.owner:
        task = replace(task, owner=caller.user)
        request = request._replace(task=task)
    elif task.owner != caller.user and not caller.steers_all:
        raise NotAllowedError(
            f"The owner of {task.id} is {task.owner}, but the token belongs to {caller.user}.",
            task_id=task.id,
            next_step="leave owner out, or use a token with the role operator as well",
        )
    if task.job is not None and (shown := mask_text(task.name)) != task.name:  # the name of a job is its command line
        request = request._replace(task=replace(task, name=shown))
    check_priority(limits_of(task.owner), task.owner, task.priority, task.id)
    return request


def check_priority(limits: OwnerLimits, owner: str, priority: float, item_id: str) -> None:
    """Raises NotAllowedError if the priority is above the limit of the owner."""
    if limits.max_priority is not None and priority > limits.max_priority:
        raise NotAllowedError(
            f"The priority of {item_id} is {priority}, but {owner} may use at most {limits.max_priority}.",
            task_id=item_id,
            next_step=f"use {limits.max_priority} or less; an admin can raise the limit",
        )


def restricted_to_own(caller: Caller, request: SubmitRequest) -> SubmitRequest:
    """The request of a caller who may use only its own items. Ownership is checked when an item is found, not before:
    it may not exist yet. Raises NotAllowedError."""
    task = request.task
    if task.content_key is not None:  # joins equal items of the same user only
        task = replace(task, content_key=f"{caller.user}:{task.content_key}")
    actor = task.actor
    if actor is not None and actor.adopt:
        raise NotAllowedError(
            f"{actor.ray_name} was created by another program, and its owner is unknown.",
            task_id=task.id,
            next_step="use a token with the role operator as well",
        )
    return request._replace(task=task, check=partial(_check_used, caller), user=caller.user)


def steer_check(caller: Caller) -> OwnershipCheck | None:
    """A check of items that the caller is about to use."""
    return None if caller.steers_all else partial(check_item_steered, caller)


def see_check(caller: Caller) -> OwnershipCheck | None:
    """A check of items that are about to be shown to the caller."""
    return None if caller.sees_all else partial(check_item_seen, caller)


def _check_used(caller: Caller, owner: str, item_id: str) -> None:
    """For use by a new item. It does not hide that the id exists, since a submission reveals that anyway."""
    if not caller.may_steer(owner):
        raise _not_yours(caller, item_id)


def check_item_steered(caller: Caller, owner: str, item_id: str) -> None:
    """Raises the error of :func:`hidden_item` if the caller may not steer items of this owner."""
    if not caller.may_steer(owner):
        raise hidden_item(caller, item_id)


def check_item_seen(caller: Caller, owner: str, item_id: str) -> None:
    """Raises the error of :func:`hidden_item` if the caller may not see items of this owner."""
    if not caller.may_see(owner):
        raise hidden_item(caller, item_id)


async def check_steered_by(caller: Caller, runtime: ServiceRuntime, item_id: str) -> None:
    """As :func:`check_item_steered`, for an item that may be unknown."""
    if not caller.steers_all and (owner := await owner_of(runtime, item_id)) is not None:
        check_item_steered(caller, owner, item_id)


def own_answer(caller: Caller, answer: Item | SchedulerError) -> Item | SchedulerError:
    """The answer to a submission, or the error if it is another user's item."""
    if isinstance(answer, Item) and not caller.may_steer(answer.task.owner):
        return _not_yours(caller, answer.id)
    return answer


def hidden_item(caller: Caller, item_id: str) -> SchedulerError:
    """The error for another user's item. A caller who may not see it gets the error for an unknown id, so that ids
    cannot be probed."""
    return _not_yours(caller, item_id) if caller.sees_all else unknown_item(item_id)


def without_hidden_ids(
    explanation: dict[str, Any], caller: Caller, owner_of_id: Callable[[str], str | None]
) -> dict[str, Any]:
    """An explanation without the ids of items that the caller may not see."""
    queue = explanation.get("queue")
    if caller.sees_all or not queue:
        return explanation
    ahead = [_ahead(one, visible_id(caller, one["id"], owner_of_id), owner_of_id(one["id"])) for one in queue["ahead"]]
    return {**explanation, "queue": {**queue, "ahead": ahead}}


def without_hidden_victims(
    report: dict[str, Any], caller: Caller, owner_of_id: Callable[[str], str | None]
) -> dict[str, Any]:
    """The report of a preemption without the ids of items that the caller may not see."""

    def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "id": visible_id(caller, row["id"], owner_of_id)} for row in rows]

    return {**report, "victims": shown(report["victims"]), "candidates": shown(report["candidates"])}


def visible_id(caller: Caller, item_id: str, owner_of_id: Callable[[str], str | None]) -> str:
    """The id, or HIDDEN_ID if the caller may not see the item."""
    return item_id if caller.sees_all or owner_of_id(item_id) == caller.user else HIDDEN_ID


def _ahead(entry: dict[str, Any], name: str, owner: str | None) -> dict[str, Any]:
    why = entry["why"]
    return {"id": name, "why": why.replace(owner, "another owner") if name == HIDDEN_ID and owner else why}


def _not_yours(caller: Caller, item_id: str) -> NotAllowedError:
    return NotAllowedError(
        f"{item_id} does not belong to {caller.user}.",
        task_id=item_id,
        next_step="use an id of your own, or a token with the role operator as well",
    )
