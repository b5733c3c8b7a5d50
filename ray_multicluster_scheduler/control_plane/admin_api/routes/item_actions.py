"""Routes that change an accepted item: cancel, hold, release, priority, retry and delete."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import ConfigurationError, ResultLostError, SchedulerError
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.common.model.checks import valid_priority
from ray_multicluster_scheduler.common.model.item_fields import ID
from ray_multicluster_scheduler.control_plane.admin_api.access import ownership
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_if_others
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.new_items import check_key, idempotency_key_of, new_id
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import items as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import IDEMPOTENCY_KEY, described
from ray_multicluster_scheduler.control_plane.config.item_models import is_id
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_reason
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.job_status import EXPIRED
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime, SubmitRequest
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs
from ray_multicluster_scheduler.scheduler.lifecycle.events import HoldRequested, PriorityChanged, ReleaseRequested
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_task

router = APIRouter(prefix="/api/v1", tags=["items"])


@router.post("/items/{item_id}/cancel", **described(Rule.STEER, docs.Cancelled, docs.Cancel))
async def cancel(request: Request, item_id: str) -> dict[str, Any]:
    """Cancel an item: ``{"reason": "…", "force": false}``. A finished item is not changed; the answer has its state."""
    body, runtime = await json_of(request), runtime_of(request)
    item = await steerable_item(request, item_id)
    changed = item is not None and not item.done()
    if item is not None and changed:
        reason = checked_reason(body.get("reason", "")) or "cancelled by the caller"
        runtime.kill(item, reason, force=body.get("force") is True)
        await runtime.until_durable()
        await record_if_others(request, item.task.owner, "cancel", item_id, {"reason": reason})
    return {"id": item_id, "state": EXPIRED if item is None else str(item.state), "changed": changed}


@router.post("/items/{item_id}/hold", **described(Rule.STEER, docs.Changed, docs.Reason))
async def hold(request: Request, item_id: str) -> dict[str, Any]:
    """Hold an item: it does not start until it is released. A dispatched attempt continues; the next one is held."""
    body, runtime = await json_of(request), runtime_of(request)
    item = await _unfinished_item(request, item_id)
    reason, before = checked_reason(body.get("reason", "")), _held(request, item)
    runtime.post_user_event(HoldRequested(item_id, reason))
    await runtime.until_durable()
    await record_if_others(request, item.task.owner, "hold", item_id, {"reason": reason})
    return {**_status_of(request, item), "changed": before != reason}


@router.post("/items/{item_id}/release", **described(Rule.STEER, docs.Changed))
async def release(request: Request, item_id: str) -> dict[str, Any]:
    """Release a held item."""
    runtime = runtime_of(request)
    item = await _unfinished_item(request, item_id)
    before = _held(request, item)
    runtime.post_user_event(ReleaseRequested(item_id))
    await runtime.until_durable()
    await record_if_others(request, item.task.owner, "release", item_id)
    return {**_status_of(request, item), "changed": before is not None}


@router.post("/items/{item_id}/priority", **described(Rule.STEER, docs.Prioritised, docs.Priority))
async def set_priority(request: Request, item_id: str) -> dict[str, Any]:
    """Change the priority of a waiting item: ``{"priority": 5}``."""
    body, runtime = await json_of(request), runtime_of(request)
    priority = valid_priority(body.get("priority"))
    item = await _unfinished_item(request, item_id)
    if not caller_of(request).steers_all:
        limits = runtime.machine.limits_of(item.task.owner)
        ownership.check_priority(limits, item.task.owner, priority, item_id)
    record = runtime.record(item_id)
    before = None if record is None else record.wanted.priority
    runtime.post_user_event(PriorityChanged(item_id, priority))
    await runtime.until_durable()
    await record_if_others(request, item.task.owner, "priority", item_id, {"priority": priority})
    return {**_status_of(request, item), "priority": priority, "changed": before != priority}


async def steerable_item(request: Request, item_id: str) -> Item | None:
    """An item that the caller may steer; None: EXPIRED. Raises UnknownItemError, NotAllowedError."""
    item = await runtime_of(request).find_item(item_id)
    if item is not None:
        ownership.check_item_steered(caller_of(request), item.task.owner, item_id)
    return item


async def _unfinished_item(request: Request, item_id: str) -> Item:
    """An unfinished item. Raises SchedulerError if it has ended, and as :func:`steerable_item` does."""
    item = await steerable_item(request, item_id)
    if item is None or item.done():
        state = EXPIRED if item is None else str(item.state)
        anyway = " --anyway" if state == TaskState.SUCCEEDED else ""  # else it is refused
        raise SchedulerError(
            f"{item_id} has ended: {state}.",
            task_id=item_id,
            next_step=f"`rmcs task retry {item_id}{anyway}` (POST /api/v1/items/{{id}}/retry), if it is to run again",
        )
    return item


def _status_of(request: Request, item: Item) -> dict[str, Any]:
    return {"id": item.id, "state": str(item.state), "held": _held(request, item) is not None}


def _held(request: Request, item: Item) -> str | None:
    """The reason of a hold; None: not held."""
    record = runtime_of(request).record(item.id)
    return None if record is None else record.held


@router.post("/items/{item_id}/retry", **described(Rule.SUBMIT, docs.Retried, docs.Retry, headers=[IDEMPOTENCY_KEY]))
async def retry(request: Request, item_id: str) -> Response:
    """Submit a failed or cancelled item again, as a new item: ``{"id": "of the new item", "anyway": false}``. It has
    the same code, arguments and options, and does not end with the program that submitted the first. ``anyway`` permits
    it for an item that succeeded or was retried already, as does an ``id``. A repeated Idempotency-Key returns the item
    that the key made first."""
    body, runtime, key = await json_of(request), runtime_of(request), idempotency_key_of(request)
    made = body.get("id")
    if made is not None and not is_id(made):
        raise ConfigurationError(f"id is {str(made)[:100]!r}.", next_step=f"give {ID.words}")
    await ownership.check_steered_by(caller_of(request), runtime, item_id)
    if made is not None or body.get("anyway") is True:
        return await _repeated(request, item_id, body, made, key)
    async with runtime.retry_locks.of(item_id):  # a concurrent second request sees the first one's retry
        await _check_not_repeated(runtime, item_id, key)
        return await _repeated(request, item_id, body, None, key)


async def _check_not_repeated(runtime: ServiceRuntime, item_id: str, key: str | None) -> None:
    """Raises SchedulerError if the item was retried already, unless this request repeats an earlier one by its
    ``key``."""
    again = (await runtime.repetitions(item_id)).get("repeated_by")
    if not again:
        return
    if key is not None and await _is_known(runtime, item_id, key):
        return
    newest = await runtime.find_item(again[-1])
    raise SchedulerError(
        f"{item_id} was retried already, as {again[-1]}, which is {'EXPIRED' if newest is None else newest.state}.",
        task_id=item_id,
        next_step='inspect that item, or retry this one all the same with --anyway, {"anyway": true}',
    )


async def _is_known(runtime: ServiceRuntime, item_id: str, key: str) -> bool:
    """Did the owner of the item use this key before?"""
    item = await runtime.find_item(item_id)
    return item is not None and await asyncio.to_thread(runtime.store.id_by_key, item.task.owner, key) is not None


async def _repeated(
    request: Request, item_id: str, body: dict[str, Any], made: str | None, key: str | None
) -> JsonResponse:
    runtime, caller = runtime_of(request), caller_of(request)
    before, objects, state = await _ended_item(runtime, item_id)
    if state is TaskState.SUCCEEDED and body.get("anyway") is not True:
        raise SchedulerError(
            f"{item_id} succeeded.", task_id=item_id, next_step='retry it all the same with --anyway, {"anyway": true}'
        )
    if made == item_id:
        raise ConfigurationError(
            f"{item_id} is the id of the item to be retried.", next_step="give another id, or none"
        )
    task = _retry_of(before, made or new_id(before.kind), key)
    wanted = ownership.with_owner(caller, runtime.machine.limits_of, SubmitRequest(task, objects))
    if not caller.steers_all:
        wanted = ownership.restricted_to_own(caller, wanted)
    (answer,) = await runtime.accept([wanted], {})
    if not caller.steers_all:
        answer = ownership.own_answer(caller, answer)
    if isinstance(answer, MissingBlobs):
        raise ResultLostError(
            f"{item_id} cannot be retried: its code or its arguments were deleted.",
            task_id=item_id,
            next_step="submit it again from the program that made it, or keep payloads longer (keep_payloads_s)",
        )
    if isinstance(answer, SchedulerError):
        raise answer
    if key is not None:
        check_key(task, answer, key, named=made is not None)
    await record_if_others(request, before.owner, "retry", item_id, {"as": answer.id})
    return JsonResponse(
        {
            "id": answer.id,
            "repeats": item_id,
            "state": str(answer.state),
            "attempt": answer.attempt,
            "cluster": answer.cluster,
        }
    )


async def _ended_item(runtime: ServiceRuntime, item_id: str) -> tuple[TaskDescription, tuple[str, ...], TaskState]:
    """Task, object names and final state of a finished item. Raises SchedulerError, UnknownItemError."""
    item: Item | None = await runtime.find_item(item_id)
    stored = None if item is None else await asyncio.to_thread(runtime.store.item, item_id)
    if item is None or stored is None:
        raise ResultLostError(
            f"{item_id} ended long ago and was deleted.", task_id=item_id, next_step="submit it again"
        )
    if item.outcome is None:
        raise SchedulerError(
            f"{item_id} has not ended: {item.state}.", task_id=item_id, next_step="wait for its end, or cancel it first"
        )
    task, objects = decode_task(stored, runtime.store.cipher)
    if task.actor is not None and task.actor.adopt:
        raise SchedulerError(
            f"{item_id} was created by another control plane, and cannot be retried by this one.",
            task_id=item_id,
            next_step="create it again from a program",
        )
    return task, objects, item.outcome.completion.state


def _retry_of(task: TaskDescription, item_id: str, key: str | None) -> TaskDescription:
    actor = task.actor
    if actor is not None and actor.ray_name == task.id:
        actor = replace(actor, ray_name=item_id)
    return replace(task, id=item_id, actor=actor, idempotency_key=key, submitted_at=0.0, program=None, repeats=task.id)


@router.delete("/items/{item_id}", **described(Rule.STEER, docs.Forgotten))
async def forget(request: Request, item_id: str) -> Response:
    """Delete the history, output and values of an ended item. Its id then answers EXPIRED, and stays in use.
    What Ray keeps of a job is not deleted."""
    runtime = runtime_of(request)
    await ownership.check_steered_by(caller_of(request), runtime, item_id)
    item = await runtime.find_item(item_id)
    if item is not None:
        needed = runtime.stored_arguments.needed()
        if not item.done():
            raise _not_now(item_id, f"it is {item.state}", "cancel it first")
        if item_id in needed:
            raise _not_now(item_id, "unfinished items need its value", "repeat it when they have ended")
        if not await asyncio.to_thread(runtime.store.forget, item_id, needed):
            raise _not_now(item_id, "an attempt of it is still being cleaned up", "repeat it in a moment")
        runtime.forget_ended(item_id)
        await record_if_others(request, item.task.owner, "forget", item_id)
    return JsonResponse({"id": item_id, "state": EXPIRED})


def _not_now(item_id: str, why: str, next_step: str) -> SchedulerError:
    return SchedulerError(f"{item_id} cannot be deleted now: {why}.", task_id=item_id, next_step=next_step)
