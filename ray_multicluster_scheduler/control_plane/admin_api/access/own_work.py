"""Whose an item is, and what a submitter may do who steers nothing but his own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.app.client_api.actors.actor_registry import name_taken
from ray_multicluster_scheduler.app.client_api.handles.item import Item, Promise
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.object_argument import ACTOR, RESULT
from ray_multicluster_scheduler.common.secret_words import masked_line
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of, check_seen
from ray_multicluster_scheduler.control_plane.admin_api.service_runtime import ServiceRuntime, Wanted
from ray_multicluster_scheduler.control_plane.config import Settings


async def owner_of(runtime: ServiceRuntime, item_id: str) -> str | None:
    """Of an item, or of the gang that this is a member of; None if it is not known (any more)."""
    named = await runtime.named(item_id)
    return None if named is None else named.owner


async def check_item_seen(request: Request, runtime: ServiceRuntime, item_id: str) -> None:
    """Raises NotAllowedError for somebody else's. What is not known is not refused here."""
    if not caller_of(request).sees_all:
        owner = await owner_of(runtime, item_id)
        if owner is not None:
            check_seen(request, owner, item_id)


async def own_ids(caller: Caller, runtime: ServiceRuntime, ids: Iterable[str]) -> dict[str, SchedulerError]:
    """Which of these the caller may not hear of, each with why."""
    if caller.sees_all:
        return {}
    refused: dict[str, SchedulerError] = {}
    for one in ids:
        owner = await owner_of(runtime, one)
        if owner is not None and not caller.may_see(owner):
            refused[one] = _not_his(caller, one)
    return refused


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


def admitted(caller: Caller, settings: Settings, wanted: Wanted) -> Wanted:
    """As whose it is run. Raises NotAllowedError for another owner than the token's user, or too high a priority."""
    task = wanted.task
    if not task.owner:
        task = replace(task, owner=caller.user)
        wanted = wanted._replace(task=task)
    elif task.owner != caller.user and not caller.steers_all:
        raise NotAllowedError(
            f"The owner of {task.id} is {task.owner}, and the token is {caller.user}'s.",
            task_id=task.id,
            next_step="leave owner out, or use a token with the role operator as well",
        )
    if task.job is not None and (shown := masked_line(task.name)) != task.name:  # a job is called by its command line
        wanted = wanted._replace(task=replace(task, name=shown))
    if settings.owners:
        check_priority(settings, task.owner, task.priority, task.id)
    return wanted


def check_priority(settings: Settings, owner: str, priority: int, item_id: str) -> None:
    """Raises NotAllowedError above the ceiling of its owner."""
    limits = settings.owners.get(owner)
    if limits is not None and limits.max_priority is not None and priority > limits.max_priority:
        raise NotAllowedError(
            f"The priority of {item_id} would be {priority}; {owner} may ask for {limits.max_priority} at the most.",
            task_id=item_id,
            next_step=f"ask for {limits.max_priority} or less; an operator can raise it",
        )


async def own_only(
    caller: Caller, runtime: ServiceRuntime, wanted: Sequence[Wanted | SchedulerError]
) -> list[Wanted | SchedulerError]:
    """Those that touch nothing of somebody else's; an error in the place of each other one."""
    known = runtime.store.known([one.task.id for one in wanted if isinstance(one, Wanted)])
    checked: list[Wanted | SchedulerError] = []
    for one in wanted:
        try:
            checked.append(one if isinstance(one, SchedulerError) else await _own(caller, runtime, one, known))
        except SchedulerError as error:
            checked.append(error)
    return checked


async def _own(caller: Caller, runtime: ServiceRuntime, wanted: Wanted, known: set[str]) -> Wanted:
    task = wanted.task
    if task.id in known or runtime.item(task.id) is not None:
        await check_steered_by(caller, runtime, task.id)
    for one in task.after:
        await check_steered_by(caller, runtime, one)
    await check_objects(caller, runtime, wanted.objects)
    if task.content_key is not None:  # joined to one's own only
        task = replace(task, content_key=f"{caller.user}:{task.content_key}")
    actor = task.actor
    if actor is not None and actor.adopt:
        raise NotAllowedError(
            f"{actor.ray_name} was left by another program, and it is not known whose it is.",
            task_id=task.id,
            next_step="use a token with the role operator as well",
        )
    # One that only a cluster knows of may be anybody's: its name is taken, and it is not handed out.
    found = wanted.get_if_exists and not (actor is not None and actor.detached and _living(runtime, task) is None)
    return wanted._replace(task=task, get_if_exists=found)


async def check_objects(caller: Caller, runtime: ServiceRuntime, names: Iterable[str]) -> None:
    """Raises NotAllowedError for values and actors of others. What was put goes by its digest, which nobody guesses."""
    for name in names:
        if name.startswith(RESULT):
            await check_steered_by(caller, runtime, name.removeprefix(RESULT))
        elif name.startswith(ACTOR):
            await check_steered_by(caller, runtime, name.removeprefix(ACTOR))


async def check_steered_by(caller: Caller, runtime: ServiceRuntime, item_id: str) -> None:
    """Raises NotAllowedError for somebody else's item."""
    if not caller.steers_all:
        owner = await owner_of(runtime, item_id)
        if owner is not None and not caller.may_steer(owner):
            raise _not_his(caller, item_id)


def own_answer(
    caller: Caller, runtime: ServiceRuntime, wanted: Wanted | SchedulerError, answer: Item | SchedulerError
) -> Item | SchedulerError:
    """Nothing of somebody else's is handed out, nor told by the way."""
    if not isinstance(wanted, Wanted):
        return answer
    if isinstance(answer, Item):
        return answer if caller.may_steer(answer.task.owner) else _not_his(caller, wanted.task.id)
    living = _living(runtime, wanted.task)
    if living is not None and not caller.may_see(living.task.owner):
        return name_taken(living.task.actor.public_name or "" if living.task.actor else "", "somebody else's", None)
    return answer


def _living(runtime: ServiceRuntime, task: TaskDescription) -> Item | None:
    return runtime.names.living(task.actor.public_name) if task.actor and task.actor.public_name else None


def _not_his(caller: Caller, item_id: str) -> NotAllowedError:
    return NotAllowedError(
        f"{item_id} is not {caller.user}'s.",
        task_id=item_id,
        next_step="use an id of your own, or a token with the role operator as well",
    )
