"""Routes of actors and of calls of their methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.control_plane.admin_api.access import ownership
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_called, record_if_others
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of, check_steered
from ray_multicluster_scheduler.control_plane.admin_api.events.long_poll import Mailbox
from ray_multicluster_scheduler.control_plane.admin_api.http import problems
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.blobs import payload_response
from ray_multicluster_scheduler.control_plane.admin_api.routes.items import item_summary
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import (
    blobs_of,
    is_text,
    json_of,
    mailboxes_of,
    page_of,
    runtime_of,
    texts,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas import items as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import CallItem
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_calls import CallRequest
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs

router = APIRouter(prefix="/api/v1", tags=["actors"])
MAX_CALLS = 10_000


@router.get("/actors", **described(Rule.SEE, docs.ActorPage))
async def list_actors(request: Request, after: str | None = None, limit: int | None = None) -> Response:
    """Living and recently ended actors, oldest first; with a ``limit`` in pages."""
    runtime, caller = runtime_of(request), caller_of(request)
    rows = explanation.actor_rows(runtime)
    if not caller.sees_all:
        owners = {row["id"]: await ownership.owner_of(runtime, row["id"]) for row in rows}
        rows = [row for row in rows if owners[row["id"]] == caller.user]
    page, more = page_of(rows, after, limit)
    return JsonResponse({"actors": page, "after": more})


@router.get("/actor", **described(Rule.SEE, docs.Status))
async def get_actor(request: Request, name: str, cluster: str | None = None) -> Response:
    """A living actor by its name: one of this service, or a detached one on ``cluster``, by default on any."""
    runtime = runtime_of(request)
    if cluster is not None:
        runtime.check_cluster(cluster)
    async with runtime.actor_names.lock(name):
        living = runtime.actor_names.living(name)
    caller = caller_of(request)
    if living is not None and not caller.may_see(living.task.owner):
        living = None
    if living is None and not caller.steers_all:  # the owner of a detached actor on a cluster is unknown
        raise UnknownItemError(
            f"No living actor {name!r} of this service is known.",
            next_step="create it with name=…; actors of other control planes require a token with the role operator",
        )
    return JsonResponse(
        item_summary(request, living if living is not None else await runtime.actor_names.find(name, cluster))
    )


@router.post("/calls", **described(Rule.SUBMIT, docs.AcceptedCalls, docs.Calls))
async def call(request: Request) -> Response:
    """Call methods: ``{"client": "any name", "calls": [{"id", "actor", "method", "arguments": digest, "objects": […]}],
    "blobs": {digest: base64}}``, in the order of execution. Answers and errors are delivered to the client's mailbox
    (``/api/v1/wait``). Calls are not stored: each is sent to its actor at most once.

    ``"first": false`` repeats a call that may have arrived before; ``mailbox`` is the one that the client had then."""
    body, runtime = await json_of(request, each="calls"), runtime_of(request)
    runtime.check_running()
    client, entries = body.get("client"), body.get("calls")
    if not isinstance(client, str) or not client:
        raise ConfigurationError("client is missing.", next_step="give a name that no other client has")
    if not isinstance(entries, list) or len(entries) > MAX_CALLS:
        raise ConfigurationError("calls is not a list of at most 10,000.", next_step='send {"calls": [{"id": …}]}')
    blobs = blobs_of(body)
    caller = caller_of(request)
    box = mailboxes_of(request).box(client, caller.user)
    late: dict[object, MissingBlobs] = {}
    answers = [await _take(request, box, entry, blobs, late) for entry in entries]
    crash_point("call taken")
    return JsonResponse({"mailbox": box.name, "calls": answers})


async def _take(
    request: Request, box: Mailbox, entry: object, blobs: Mapping[str, bytes], late: dict[object, MissingBlobs]
) -> dict[str, Any]:
    """``late`` has the actors with a call that waits for an upload of its arguments: no later call may overtake it."""
    runtime, caller = runtime_of(request), caller_of(request)
    try:
        wanted = _wanted(entry, box, None if caller.steers_all else caller.user)
        known, new = box.find(wanted.id), False
        if known is None:
            if wanted.actor in late:
                raise late[wanted.actor]
            _check_id(runtime, wanted)
            known = await runtime.calls.accept(
                wanted,
                blobs,
                lambda: box.find(wanted.id) or runtime.method_calls.find(wanted.id),
                ownership.steer_check(caller),
            )
            new = True
        if isinstance(known, Item):
            raise _taken(wanted.id)
        box.watch(known)  # before any await, during which it may be answered and repeated
        if new and isinstance(known, CallItem) and caller.steers_all:
            await record_called(request, known.actor.item)
    except MissingBlobs as error:
        late[wanted.actor] = error
        return {"problem": problems.problem_of(error)}
    except SchedulerError as error:
        return {"problem": problems.problem_of(error)}
    return {"id": wanted.id}


def _check_id(runtime: ServiceRuntime, wanted: CallRequest) -> None:
    """Raises ConfigurationError if the id, which the client chose, is in use for something else."""
    known = runtime.method_calls.find(wanted.id)
    if known is not None:
        same = (known.actor.item.id, known.method) == (wanted.actor, wanted.method)
        if wanted.first or not same:
            raise _taken(wanted.id)
    elif runtime.item(wanted.id) is not None or runtime.record(wanted.id) is not None:
        raise _taken(wanted.id)


def _taken(call_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"{call_id} is already in use for something else.", task_id=call_id, next_step="give the call an id of its own"
    )


def _wanted(entry: object, box: Mailbox, user: str | None) -> CallRequest:
    """Raises ConfigurationError."""
    if isinstance(entry, ConfigurationError):
        raise entry
    if not isinstance(entry, Mapping):
        raise ConfigurationError("A call is not a JSON object.", next_step='send {"id": …, "actor": …, "method": …}')
    for key in ("id", "actor", "method"):
        if not is_text(entry.get(key)) or not entry[key]:
            raise ConfigurationError(f"The {key} of a call is {str(entry.get(key))[:100]!r}.", next_step="give a text")
    arguments = entry.get("arguments")
    first = entry.get("first") is not False
    fresh = first or entry.get("mailbox") == box.name
    if fresh and not is_text(arguments):
        raise ConfigurationError(
            f"The call {entry['id']} has no arguments.", next_step="name the digest of the pickled (args, kwargs)"
        )
    objects = tuple(texts(dict(entry), "objects"))
    named = entry["id"], entry["actor"], entry["method"], arguments, objects
    return CallRequest(*named, entry.get("paths") is True, first, fresh, user)


@router.post("/calls/{call_id}/cancel", **described(Rule.STEER, docs.CallId, docs.CancelCall))
async def cancel_call(request: Request, call_id: str) -> dict[str, Any]:
    """Cancel a call: ``{"force": false}``. An answered call is not affected."""
    body, runtime = await json_of(request), runtime_of(request)
    open_call = runtime.method_calls.find(call_id)
    caller = caller_of(request)
    if open_call is not None and not caller.may_steer(open_call.actor.item.task.owner) and not caller.sees_all:
        open_call = None  # answered like an unknown call
    if open_call is not None:
        check_steered(request, open_call.actor.item.task.owner, open_call.actor.item.id)
        runtime.method_calls.cancel(open_call, force=body.get("force") is True)
        owner = open_call.actor.item.task.owner
        await record_if_others(request, owner, "cancel call", call_id, {"actor": open_call.actor.item.id})
    return {"id": call_id}


@router.get("/calls/{call_id}/explain", **described(Rule.SEE, docs.CallExplanation))
async def explain_call(request: Request, call_id: str) -> Response:
    """Why a call has no answer yet."""
    open_call = runtime_of(request).method_calls.find(call_id)
    if open_call is None or not caller_of(request).may_see(open_call.actor.item.task.owner):
        raise UnknownItemError(f"There is no unanswered call {call_id!r}.", task_id=call_id)
    return JsonResponse(explanation.call_explanation(open_call))


@router.get("/calls/{call_id}/result", **described(Rule.STEER, docs.PICKLED))
async def call_result(request: Request, call_id: str, client: str) -> Response:
    """The pickled value of an answered call, or the pickled exception of user code, until its client has received
    it."""
    known = mailboxes_of(request).box(client, caller_of(request).user).find(call_id)
    outcome = known.outcome if isinstance(known, CallItem) else None
    if outcome is None or outcome.result is None or outcome.result.payload is None:
        raise UnknownItemError(f"There is no answer to the call {call_id!r}.", task_id=call_id)
    return payload_response(outcome.result.payload)
