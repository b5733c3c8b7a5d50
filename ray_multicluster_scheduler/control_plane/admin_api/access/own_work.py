"""Whose an item is, and what a submitter may do who steers nothing but his own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from starlette.requests import HTTPConnection

from ray_multicluster_scheduler.common.control_characters import check_identifiers
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError
from ray_multicluster_scheduler.common.redaction import mask_text
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.explanation import unknown_item
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import (
    OwnershipCheck,
    ServiceRuntime,
    SubmitRequest,
)

OTHERS = "somebody else's item"
LimitsOf: TypeAlias = Callable[[str], OwnerLimits]
"""What an owner may have now."""


async def owner_of(runtime: ServiceRuntime, item_id: str) -> str | None:
    """Of an item, or of the gang that this is a member of; None if it is not known (any more)."""
    named = await runtime.resolve_id(item_id)
    return None if named is None else named.owner


def may_read(caller: Caller, promise: Promise) -> bool:
    """Its value, not only what happened to it. A call is its client's."""
    return caller.may_steer(promise.task.owner) if isinstance(promise, Item) else caller.submits


def without_values(status: dict[str, Any]) -> dict[str, Any]:
    """What is told of an item to somebody who may not read its value."""
    return {**status, "outcome": _bare(status["outcome"])} if "outcome" in status else status


def _bare(outcome: dict[str, Any]) -> dict[str, Any]:
    result, origin = outcome["result"], outcome["origin"]
    return {
        **outcome,
        "result": result and {name: value for name, value in result.items() if name not in ("payload", "digest")},
        "origin": origin and _bare(origin),
    }


# ---- submitting


def admitted(caller: Caller, limits_of: LimitsOf, wanted: SubmitRequest) -> SubmitRequest:
    """As whose it is run. Raises NotAllowedError for another owner than the token's user, or too high a priority,
    ConfigurationError for an id, an owner or a key that is more than a line."""
    task = wanted.task
    check_identifiers(task)
    if not task.owner:
        task = replace(task, owner=caller.user)
        wanted = wanted._replace(task=task)
    elif task.owner != caller.user and not caller.steers_all:
        raise NotAllowedError(
            f"The owner of {task.id} is {task.owner}, and the token is {caller.user}'s.",
            task_id=task.id,
            next_step="leave owner out, or use a token with the role operator as well",
        )
    if task.job is not None and (shown := mask_text(task.name)) != task.name:  # a job is called by its command line
        wanted = wanted._replace(task=replace(task, name=shown))
    check_priority(limits_of(task.owner), task.owner, task.priority, task.id)
    return wanted


def check_priority(limits: OwnerLimits, owner: str, priority: int, item_id: str) -> None:
    """Raises NotAllowedError above the ceiling of its owner."""
    if limits.max_priority is not None and priority > limits.max_priority:
        raise NotAllowedError(
            f"The priority of {item_id} would be {priority}; {owner} may ask for {limits.max_priority} at the most.",
            task_id=item_id,
            next_step=f"ask for {limits.max_priority} or less; an operator can raise it",
        )


def own_only(caller: Caller, wanted: SubmitRequest) -> SubmitRequest:
    """The same, for one who touches nothing of somebody else's: whose things are is asked when they are found, not
    before, when they may not be there yet. Raises NotAllowedError."""
    task = wanted.task
    if task.content_key is not None:  # joined to one's own only
        task = replace(task, content_key=f"{caller.user}:{task.content_key}")
    actor = task.actor
    if actor is not None and actor.adopt:
        raise NotAllowedError(
            f"{actor.ray_name} was left by another program, and it is not known whose it is.",
            task_id=task.id,
            next_step="use a token with the role operator as well",
        )
    return wanted._replace(task=task, check=partial(_check_used, caller), user=caller.user)


def steered_by(caller: Caller) -> OwnershipCheck | None:
    """For whoever finds an item that is to be used."""
    return None if caller.steers_all else partial(_check_steered, caller)


def seen_by(caller: Caller) -> OwnershipCheck | None:
    """For whoever finds an item that is to be told of."""
    return None if caller.sees_all else partial(_check_seen, caller)


def _check_used(caller: Caller, owner: str, item_id: str) -> None:
    """By something new, whose id has to be free: who submits learns which are not, whatever he is told here."""
    if not caller.may_steer(owner):
        raise _not_his(caller, item_id)


def _check_steered(caller: Caller, owner: str, item_id: str) -> None:
    if not caller.may_steer(owner):
        raise not_there_for(caller, item_id)


def _check_seen(caller: Caller, owner: str, item_id: str) -> None:
    if not caller.may_see(owner):
        raise not_there_for(caller, item_id)


def check_item_seen(request: HTTPConnection, owner: str, item_id: str) -> None:
    """Raises as :func:`not_there_for` says."""
    _check_seen(caller_of(request), owner, item_id)


def check_item_steered(request: HTTPConnection, owner: str, item_id: str) -> None:
    """Raises as :func:`not_there_for` says."""
    _check_steered(caller_of(request), owner, item_id)


async def check_steered_by(caller: Caller, runtime: ServiceRuntime, item_id: str) -> None:
    """Raises as :func:`not_there_for` says for somebody else's item."""
    if not caller.steers_all:
        owner = await owner_of(runtime, item_id)
        if owner is not None:
            _check_steered(caller, owner, item_id)


def own_answer(caller: Caller, answer: Item | SchedulerError) -> Item | SchedulerError:
    """Nothing of somebody else's is handed out."""
    if isinstance(answer, Item) and not caller.may_steer(answer.task.owner):
        return _not_his(caller, answer.id)
    return answer


def not_there_for(caller: Caller, item_id: str) -> SchedulerError:
    """Somebody else's item, for whoever may not have it. Who may not even see it is answered as if it were not there:
    else ids could be tried, to learn which there are."""
    return _not_his(caller, item_id) if caller.sees_all else unknown_item(item_id)


def without_others(story: dict[str, Any], caller: Caller, owner_of_id: Callable[[str], str | None]) -> dict[str, Any]:
    """What `explain` tells, for this caller: one who may only know of his own does not learn the ids of others from
    it."""
    if caller.sees_all:
        return story

    queue = story.get("queue")
    if not queue:
        return story
    ahead = [_ahead(one, named_for(caller, one["id"], owner_of_id), owner_of_id(one["id"])) for one in queue["ahead"]]
    return {**story, "queue": {**queue, "ahead": ahead}}


def named_for(caller: Caller, item_id: str, owner_of_id: Callable[[str], str | None]) -> str:
    """Its id, for those who may know of it."""
    return item_id if caller.sees_all or owner_of_id(item_id) == caller.user else OTHERS


def _ahead(said: dict[str, Any], name: str, owner: str | None) -> dict[str, Any]:
    why = said["why"]
    return {"id": name, "why": why.replace(owner, "another owner") if name == OTHERS and owner else why}


def _not_his(caller: Caller, item_id: str) -> NotAllowedError:
    return NotAllowedError(
        f"{item_id} is not {caller.user}'s.",
        task_id=item_id,
        next_step="use an id of your own, or a token with the role operator as well",
    )
