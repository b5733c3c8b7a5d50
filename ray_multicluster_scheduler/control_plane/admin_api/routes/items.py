"""Routes of items (tasks, jobs, gangs): submit, list, get, wait, explain, result and logs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.item_fields import KINDS
from ray_multicluster_scheduler.common.object_argument import ACTOR
from ray_multicluster_scheduler.control_plane.admin_api.access import ownership
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_submitted
from ray_multicluster_scheduler.control_plane.admin_api.access.expiry import run_while_valid
from ray_multicluster_scheduler.control_plane.admin_api.access.ownership import see_check
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import (
    Caller,
    Rule,
    caller_of,
    check_seen,
    is_still_valid,
    visible_owner,
)
from ray_multicluster_scheduler.control_plane.admin_api.events import output_stream
from ray_multicluster_scheduler.control_plane.admin_api.http import problems
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.blobs import large_value, payload_response, result_lost
from ray_multicluster_scheduler.control_plane.admin_api.routes.item_actions import steerable_item
from ray_multicluster_scheduler.control_plane.admin_api.routes.new_items import (
    check_key,
    idempotency_key_of,
    missing_task_error,
    with_id,
    with_key,
)
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import (
    blobs_of,
    check_fields,
    cursor_of,
    json_of,
    leases_of,
    mailboxes_of,
    number_of,
    rows_at_most,
    runtime_of,
    seconds,
    texts,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas import items as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import IDEMPOTENCY_KEY, described
from ray_multicluster_scheduler.control_plane.config.item_models import item_from
from ray_multicluster_scheduler.control_plane.runtime import job_logs, wire
from ray_multicluster_scheduler.control_plane.runtime.explanation import (
    current_reason,
    current_wait_reasons,
    repeats_of,
)
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import VALUE_FORGOTTEN
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from ray_multicluster_scheduler.control_plane.store import ItemQuery, Store, StoredItem
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import pool_fields_of, started_at

router = APIRouter(prefix="/api/v1")
MAX_ITEMS = 10_000
MAX_WAIT_S = 60.0
_OF_ONE = ("task", "objects", "get_if_exists")
_OF_ALL = ("blobs", "client")
_ROWS_AT_ONCE = 50


@router.post(
    "/items",
    tags=["items"],
    **described(Rule.SUBMIT, docs.Accepted, docs.Submission, examples=docs.SUBMISSIONS, headers=[IDEMPOTENCY_KEY]),
)
async def submit(request: Request) -> Response:
    """Submit one item: ``{"task": {…}, "objects": […], "blobs": {digest: base64}}``. Answered when it is durable.
    An item without an id gets one."""
    body = await json_of(request)
    if "task" not in body:
        raise missing_task_error()
    check_fields(body, (*_OF_ONE, *_OF_ALL), "A submission")
    shared = {key: body[key] for key in _OF_ALL if key in body}
    entry = {key: value for key, value in body.items() if key not in _OF_ALL}
    (answer,) = await _take(request, {**shared, "items": [entry]}, many=False)
    problem = answer.get("problem")
    if problem is not None:
        return problems.problem_response(problem)
    return JsonResponse(answer)


@router.post(
    "/items/batch",
    tags=["items"],
    **described(Rule.SUBMIT, docs.AcceptedBatch, docs.Batch, examples=docs.BATCHES, headers=[IDEMPOTENCY_KEY]),
)
async def submit_batch(request: Request) -> Response:
    """Submit many items: ``{"items": [{"task": {…}, "objects": […]}], "blobs": {…}}``. Each is accepted or refused by
    itself; the answers are in the order of the items, and accepted items are durable. Items without an id get one."""
    body = await json_of(request, each="items")
    check_fields(body, ("items", *_OF_ALL), "A batch")
    return JsonResponse({"items": await _take(request, body, many=True)})


async def _take(request: Request, body: dict[str, Any], *, many: bool) -> list[dict[str, Any]]:
    entries = body.get("items")
    if not isinstance(entries, list) or len(entries) > MAX_ITEMS:
        raise ConfigurationError("items is not a list of at most 10,000.", next_step='send {"items": [{"task": …}]}')
    client = body.get("client")
    if client is not None and not isinstance(client, str):
        raise ConfigurationError(f"client is {str(client)[:100]!r}.", next_step="give the name of a mailbox, or none")
    blobs, key = blobs_of(body), idempotency_key_of(request)
    wanted: list[SubmitRequest | SchedulerError] = []
    runtime, caller = runtime_of(request), caller_of(request)
    for number, entry in enumerate(entries):
        try:
            new = ownership.with_owner(caller, runtime.machine.limits_of, submission_from(entry, caller.user))
            new = new if key is None else _keyed(new, key, number if many else None)
            wanted.append(new if caller.steers_all else ownership.restricted_to_own(caller, new))
        except SchedulerError as error:
            wanted.append(error)
    taken = iter(await runtime.accept([one for one in wanted if isinstance(one, SubmitRequest)], blobs))
    answers = [one if isinstance(one, SchedulerError) else next(taken) for one in wanted]
    if not caller.steers_all:
        answers = [ownership.own_answer(caller, one) for one in answers]
    if key is not None:
        submitted = zip(entries, wanted, answers, strict=True)
        answers = [_key_checked(entry, one, answer, key) for entry, one, answer in submitted]
    if caller.steers_all:
        await record_submitted(request, answers)
    box = mailboxes_of(request).box(client, caller.user) if client else None
    for one in answers:
        if isinstance(one, Item):
            leases_of(request).hold(one)
            if box is not None:
                box.watch(one)
    return [
        {"problem": problems.problem_of(one)} if isinstance(one, SchedulerError) else _short(one) for one in answers
    ]


def _keyed(wanted: SubmitRequest, key: str, number: int | None) -> SubmitRequest:
    """The submission with the idempotency key of the request; in a batch extended by its ``number``. Raises
    ConfigurationError."""
    if number is None:
        return wanted._replace(task=with_key(wanted.task, key))
    if wanted.task.idempotency_key is not None:
        return wanted
    return wanted._replace(task=with_key(wanted.task, f"{key}/{number}"))


def _key_checked(
    entry: Any, wanted: SubmitRequest | SchedulerError, answer: Item | SchedulerError, key: str
) -> Item | SchedulerError:
    try:
        if isinstance(wanted, SubmitRequest) and isinstance(answer, Item):
            check_key(wanted.task, answer, key, named="id" in entry["task"])
    except SchedulerError as error:
        return error
    return answer


def _short(item: Item) -> dict[str, Any]:
    return {"id": item.id, "state": str(item.state), "attempt": item.attempt, "cluster": item.cluster}


def submission_from(entry: object, user: str) -> SubmitRequest:
    """The submission; its owner defaults to this user. Raises ConfigurationError."""
    if isinstance(entry, ConfigurationError):
        raise entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("task"), Mapping):
        raise missing_task_error()
    check_fields(entry, _OF_ONE, "An item")
    fields = with_id(entry["task"])
    task = item_from({**fields, "owner": user} if fields.get("owner", "") == "" else fields)
    if task.kind in ("task", "actor") and not (task.function_digest and task.arguments_digest):
        raise ConfigurationError(
            f"{task.kind} {task.id} has no payload: function_digest or arguments_digest is missing.",
            task_id=task.id,
            next_step="give both, and the pickled data in blobs, as the Python library does; a job needs none",
        )
    objects = tuple(texts(dict(entry), "objects"))
    values = [one for one in objects if not one.startswith(ACTOR)]
    if task.gang is not None and sum(one.objects for one in task.gang.members) != len(values):
        raise ConfigurationError(
            f"gang {task.id} has {len(values)} objects, but its members use another number of them.",
            task_id=task.id,
            next_step="give one object for each that a member uses",
        )
    return SubmitRequest(task, objects, entry.get("get_if_exists") is True)


@router.get("/items/{item_id}", tags=["items"], **described(Rule.SEE, docs.Status))
async def get(request: Request, item_id: str) -> dict[str, Any]:
    """The state of an item, with its outcome if it has ended."""
    runtime = runtime_of(request)
    item = await runtime.find_item(item_id)
    if item is None:
        return {"id": item_id, "state": "EXPIRED"}
    summary = {**item_summary(request, item), **await runtime.repetitions(item_id)}
    if runtime.record(item.id) is None and (stored := await asyncio.to_thread(runtime.store.item, item.id)) is not None:
        summary.update(pool_fields_of(stored))
    return summary


def item_summary(request: Request, item: Item) -> dict[str, Any]:
    """An item for a caller who may see it. Raises NotAllowedError."""
    ownership.check_item_seen(caller_of(request), item.task.owner, item.id)
    record = runtime_of(request).record(item.id)
    summary = {
        **_status(caller_of(request), item),
        **_wait_reason(request, item),
        "kind": item.task.kind,
        "name": item.task.name,
        "owner": item.task.owner,
        **(item.task if record is None else record.wanted).pool_fields,
        **repeats_of(item.task),
    }
    return summary if item.task.actor is None else {**summary, "actor": item.task.actor.to_dict()}


def _wait_reason(request: Request, item: Item) -> dict[str, str]:
    """The current reason of an unfinished item, which may be newer than that of its last step."""
    runtime = runtime_of(request)
    record = None if item.done() else runtime.record(item.id)
    if record is None:
        return {}
    code, sentence = current_reason(runtime, record, current_wait_reasons(runtime))
    return {"code": code, "sentence": sentence}


def _status(caller: Caller, item: Promise) -> dict[str, Any]:
    status = wire.status_to_wire(item)
    return status if caller.steers_all or ownership.may_read_value(caller, item) else ownership.without_values(status)


@router.get("/items", tags=["items"], **described(Rule.SEE, docs.ItemPage))
async def list_items(
    request: Request,
    state: str | None = None,
    kind: str | None = None,
    owner: str | None = None,
    cluster: str | None = None,
    name: str | None = None,
    begins: str | None = None,
    since: float | None = None,
    until: float | None = None,
    after: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """Items, newest first, in pages: pass the ``after`` of the answer for the next one."""
    states = _states(state)
    if kind is not None and kind not in KINDS:
        raise ConfigurationError(f"kind is {kind[:100]!r}.", next_step=f"use one of {', '.join(KINDS)}")
    for key, at in (("since", since), ("until", until)):
        if at is not None and not math.isfinite(at):
            raise ConfigurationError(f"{key} is {at}.", next_step="give seconds since 1970")
    caller = caller_of(request)
    if not caller.sees_all:
        check_seen(request, owner or caller.user, f"What belongs to {owner}")
        owner = caller.user
    last, most = number_of(after), rows_at_most(limit)
    query = ItemQuery(states, kind, owner, cluster, last, most, name, begins, since, until)
    return await asyncio.to_thread(_rows, runtime_of(request).store, query)


def _rows(store: Store, query: ItemQuery) -> dict[str, Any]:
    page = store.items(query)
    return {"items": [_row(one) for one in page.items], "after": cursor_of(page.after)}


def _states(words: str | None) -> tuple[TaskState, ...]:
    for word in words.split(",") if words else ():
        if word not in set(TaskState):
            raise ConfigurationError(f"state is {word[:100]!r}.", next_step=f"use {', '.join(TaskState)}")
    return tuple(TaskState(one) for one in words.split(",")) if words else ()


def _row(stored: StoredItem) -> dict[str, Any]:
    new, now = stored.new, stored.status
    return {
        "id": new.id,
        "kind": new.kind,
        "name": new.name,
        "owner": new.owner,
        "state": str(now.state),
        "attempt": now.attempt,
        "cluster": now.cluster,
        "priority": now.priority,
        **pool_fields_of(stored),
        "submitted_at": new.submitted_at,
        "started_at": started_at(now),
        "finished_at": now.finished_at,
    }


@router.post("/wait", tags=["items"], **described(Rule.SEE, docs.Changes, docs.Wait))
async def wait(request: Request) -> Response:
    """Wait for changes of items, as a long poll: ``{"client": "any name", "mailbox": …, "add": [ids], "heard": [ids],
    "timeout": 25}``.

    Answers with changes of the client's items. Ended items are repeated until the client acknowledges them in
    ``heard``. ``mailbox`` is the one of the last answer; if an answer has another one, add all ids again.
    """
    body = await json_of(request)
    client = body.get("client")
    if not isinstance(client, str) or not client:
        raise ConfigurationError("client is missing.", next_step="give a name that no other client has")
    timeout = seconds(body, "timeout", 25.0, MAX_WAIT_S)
    known = body.get("mailbox") if isinstance(body.get("mailbox"), str) else None
    caller, add, heard = caller_of(request), texts(body, "add", MAX_ITEMS), texts(body, "heard")
    asking = mailboxes_of(request).ask(
        client,
        known,
        add,
        heard,
        timeout,
        user=caller.user,
        status_of=wire.status_to_wire if caller.steers_all else partial(_status, caller),
        check=ownership.see_check(caller),
    )
    return JsonResponse(await run_while_valid(request, asking))


@router.get("/items/{item_id}/explain", tags=["items"], **described(Rule.SEE, docs.Explanation))
async def explain(request: Request, item_id: str) -> Response:
    """Why an item is in its state."""
    runtime, caller = runtime_of(request), caller_of(request)
    answer = await runtime.explanation_of(item_id, ownership.see_check(caller))
    return JsonResponse(ownership.without_hidden_ids(answer, caller, runtime.live_owner))


@router.get("/items/{item_id}/preemption", tags=["items"], **described(Rule.SEE, docs.Preemption))
async def preemption(request: Request, item_id: str) -> Response:
    """Which running items would give way to a waiting item, or why none would. Changes nothing."""
    runtime, caller = runtime_of(request), caller_of(request)
    answer = await runtime.preemption_of(item_id, ownership.see_check(caller))
    return JsonResponse(ownership.without_hidden_victims(answer, caller, runtime.live_owner))


@router.get(
    "/items/{item_id}/result",
    tags=["items"],
    **described(Rule.STEER, docs.PICKLED, others={204: ("It succeeded and has no value, such as a job.", None)}),
)
async def result(request: Request, item_id: str) -> Response:
    """The pickled value of an item that succeeded, or the pickled exception of user code."""
    runtime = runtime_of(request)
    await ownership.check_steered_by(caller_of(request), runtime, item_id)
    large = await large_value(runtime, item_id)
    if large is not None:
        return large
    item = await steerable_item(request, item_id)
    if item is None:
        raise result_lost(item_id)
    if item.outcome is None:
        raise SchedulerError(f"{item_id} has not ended: {item.state}.", task_id=item_id, next_step="wait for its end")
    stored = item.outcome.result
    if stored is not None and stored.kept is not None:
        return payload_response(await runtime_of(request).kept_values.fetch(item.outcome))
    if stored is None or stored.payload is None:
        if stored is not None and stored.code == VALUE_FORGOTTEN:
            raise result_lost(item_id)
        return Response(status_code=204)
    return payload_response(stored.payload)


@router.get("/items/{item_id}/logs", tags=["items"], **described(Rule.SEE, docs.OUTPUT_TEXT))
async def logs(
    request: Request, item_id: str, attempt: int | None = None, stream: str | None = None, follow: bool = False
) -> Response:
    """The output of an attempt, by default of the newest. ``follow`` streams it until the item has ended; with
    ``attempt`` until that attempt has ended, so that a client that was disconnected can resume."""
    runtime = runtime_of(request)
    item = await runtime.find_item(item_id)
    if item is None:
        raise result_lost(item_id)
    ownership.check_item_seen(caller_of(request), item.task.owner, item_id)
    if attempt is not None and not 0 < attempt <= item.attempt:
        had = "none yet" if not item.attempt else f"attempts 1 to {item.attempt}"
        raise ConfigurationError(
            f"attempt is {str(attempt)[:30]}, but {item_id} had {had}.", next_step="give one of them, or none"
        )
    if stream not in (None, "stdout", "stderr"):
        raise ConfigurationError(f"stream is {str(stream)[:100]!r}.", next_step="use stdout or stderr, or give none")
    still = partial(is_still_valid, request)
    if item.task.kind == "job":
        record = runtime.record(item_id)
        # The scheduler may have started the next attempt before the item shows it.
        is_past = record is None or not record.live or (attempt is not None and attempt < record.attempt)
        past = attempt if attempt is not None and is_past else None
        if record is None and past is None and item.attempt and not follow:
            return PlainTextResponse(await output_stream.last_attempt_output(runtime, item))
        if record is None:  # it ended long ago; its cluster may still have its output
            past = past or item.attempt
        if past:
            read = output_stream.past_attempt_output_or_empty if follow else output_stream.past_attempt_output
            return PlainTextResponse(await read(runtime, item, past))
        if record is None:
            return PlainTextResponse("")
        if follow:
            await output_stream.check_followable(runtime, item, attempt)
            return StreamingResponse(output_stream.job_output(runtime, item, still, attempt), media_type="text/plain")
        return PlainTextResponse(await asyncio.to_thread(job_logs.read_all, runtime, item_id))
    if follow and not item.done() and attempt in (None, item.attempt):
        pieces = output_stream.task_output(runtime, item, still, alone=attempt is not None)
        return StreamingResponse(pieces, media_type="text/plain")
    return PlainTextResponse(await runtime.output_of(item, attempt or item.attempt, stream))


@router.get("/jobs", tags=["fleet"], **described(Rule.SEE, docs.JobPage))
async def jobs(request: Request, after: str | None = None, limit: int = 100) -> Response:
    """All known jobs, newest first, in pages: pass the ``after`` of the answer for the next one."""
    runtime, only = runtime_of(request), visible_owner(request)
    query = ItemQuery(kind="job", owner=only, after=number_of(after), limit=rows_at_most(limit))
    page = await asyncio.to_thread(runtime.store.items, query)
    rows, reasons = [], current_wait_reasons(runtime)  # shared by all rows: each costs a decision
    for number, one in enumerate(page.items, 1):
        rows.append(await runtime.job(one.new.id, reasons=reasons))
        if number % _ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)  # let other requests run
    return JsonResponse({"jobs": rows, "after": cursor_of(page.after)})


@router.get("/jobs/{job_id}", tags=["fleet"], **described(Rule.SEE, docs.JobInfo))
async def job(request: Request, job_id: str) -> Response:
    """A job in the form of Ray's job API."""
    return JsonResponse(await runtime_of(request).job(job_id, see_check(caller_of(request))))
