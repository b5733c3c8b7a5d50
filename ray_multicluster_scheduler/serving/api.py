"""The HTTP face of a serving scheduler: ``app`` for `uvicorn ray_multicluster_scheduler.serving.api:app`.

``HotPath`` answers the frequent routes, POST /queue/submit and /v1/…, itself; FastAPI answers the others (``router``).
Handlers find the scheduler, its events and the access rules in ``app.state``. ``RMCS_SERVING_CONFIG`` names the
configuration of ``app``, ``RMCS_SERVING_STATE`` the folder where its tasks are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InstanceError,
    QueueFullError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import SERVING, EventFilter, missed_event
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Subscription
from ray_multicluster_scheduler.serving import models
from ray_multicluster_scheduler.serving.config import ServingConfig, apply_config, read_config
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.errors import BodyTooLargeError, TaskIdTakenError, unknown_task
from ray_multicluster_scheduler.serving.events import TaskEvents
from ray_multicluster_scheduler.serving.journal import open_journal
from ray_multicluster_scheduler.serving.router.passthrough import (
    DeadlineError,
    PassThrough,
    UpstreamError,
)
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo

CONFIG_VARIABLE = "RMCS_SERVING_CONFIG"
STATE_VARIABLE = "RMCS_SERVING_STATE"
MAX_BODY = 64 * 1024**2
INSTANCE_SOCKET = "/ws/result_submit"
_REGISTER_WITHIN_S = 10.0
_GOING_AWAY, _POLICY_VIOLATION = 1001, 1008
_STATUS: tuple[tuple[type[SchedulerError], int], ...] = (
    (UnknownItemError, 404),
    (BodyTooLargeError, 413),
    (TaskIdTakenError, 409),
    (UpstreamError, 502),
    (InstanceError, 409),
    (DeadlineError, 503),
    (QueueFullError, 429),
    (ConfigurationError, 422),
)
router = APIRouter()


class Access:
    """Who may do what. Here every caller may do everything; the service has rules of its own."""

    private_headers: Sequence[bytes] = ()
    """Request headers that are not passed on to instances."""

    def check_submit(self, connection: HTTPConnection) -> None:
        """Raises NotAllowedError if this caller may not submit."""

    def owner(self, connection: HTTPConnection) -> str:
        """The owner of the tasks that this caller submits."""
        return ""

    def visible_owner(self, connection: HTTPConnection) -> str | None:
        """The only owner whose tasks this caller may see; None: all."""
        return None

    def reported_owner(self, connection: HTTPConnection) -> str | None:
        """The only owner of whose tasks this caller may report the end; None: all."""
        return None

    def watch(self, connection: HTTPConnection, reader: Subscription) -> Callable[[], None]:
        """End a subscription when its caller may no longer read. Returns a function to call when it is closed."""
        return lambda: None

    async def record(self, request: Request, action: str, subject: str) -> None:
        """Record what an operator does."""

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses at which an instance may be called; none: all of its host. Raises NotAllowedError."""
        return ()

    def problem(self, error: SchedulerError, *, openai: bool) -> Mapping[str, Any]:
        """A problem document; ``openai``: of a /v1 route."""
        return problem_of(error, openai=openai)


# ---- instances


@router.post("/ti/register")
async def register(request: Request, body: models.TIRegisterRequest) -> models.TIRegisterResponse:
    """Register an instance. The same address again is the same instance; one that does not answer is used later."""
    scheduler = _scheduler(request)
    added = await scheduler.register_async(body, await _access(request).addresses(body.host, body.port))
    await _access(request).record(request, "register instance", f"{body.host}:{body.port}")
    problem = scheduler.instance_problem(added.uuid)
    message = f"registered, but not used until it answers: {problem}" if problem else "registered"
    return models.TIRegisterResponse(message=message, ti_uuid=added.uuid)


@router.post("/ti/remove")
async def remove(request: Request, body: models.TIRemoveRequest) -> models.TIRemoveResponse:
    """Remove an instance. What waits there goes elsewhere; with ``drain`` what runs there finishes."""
    name = body.ti_uuid or models.address_of(body.host, body.port)
    scheduler = _scheduler(request)
    uuid = scheduler.remove_instance(name, drain=body.drain)
    await scheduler.durable()
    await _access(request).record(request, "remove instance", name)
    return models.TIRemoveResponse(message="removed", ti_uuid=uuid)


@router.get("/models")
async def list_models(request: Request) -> models.ModelsResponse:
    """The models that have instances or waiting tasks."""
    return models.ModelsResponse(models=_scheduler(request).models())


# ---- tasks


@router.post("/queue/submit")
async def submit(request: Request, body: models.QueueSubmitRequest) -> models.QueueSubmitResponse:
    """Submit a task. It waits if its model has no instance yet."""
    # HotPath answers this itself, unless there are query parameters
    return await submitted(_scheduler(request), body, _access(request).owner(request))


@router.post("/queue/submit_batch")
async def submit_batch(request: Request, body: models.QueueBatchSubmitRequest) -> models.QueueBatchSubmitResponse:
    """Submit many tasks for one model in one pass; each may be refused for itself."""
    tasks = [(one.task_id, one.task_input, one.metadata) for one in body.tasks]
    scheduler = _scheduler(request)
    accepted = scheduler.submit(body.model_name, tasks, _access(request).owner(request))
    await scheduler.durable()
    results = [
        models.BatchTaskResult(index=index, status="error", task_id=one.task_id, error=str(one))
        if isinstance(one, SchedulerError)
        else models.BatchTaskResult(index=index, status="success", task_id=one.task_id, scheduled_ti=one.ti_uuid or "")
        for index, one in enumerate(accepted)
    ]
    failed = sum(one.status == "error" for one in results)
    return models.QueueBatchSubmitResponse(
        status="success" if not failed else "partial" if failed < len(results) else "error",
        total_tasks=len(results),
        successful_tasks=len(results) - failed,
        failed_tasks=failed,
        results=results,
    )


@router.get("/queue/info")
async def queue_info(request: Request, model_name: str | None = None) -> models.QueueInfoResponse:
    """The queue of each instance: the expected remaining time of what is charged there."""
    return models.QueueInfoResponse(queues=_scheduler(request).queue_info(model_name))


@router.get("/task/query")
async def query(request: Request, task_id: str) -> models.TaskQueryResponse:
    """The state of a task, and its result once it has one."""
    return _task(_visible(request, task_id, _access(request).visible_owner(request)))


@router.get("/task/explain")
async def explain(request: Request, task_id: str) -> models.TaskExplainResponse:
    """Why a task is where it is: each candidate with its expected wait and the predicted time of the task."""
    _visible(request, task_id, _access(request).visible_owner(request))
    return models.TaskExplainResponse.model_validate(_scheduler(request).explain(task_id))


@router.get("/task/all_tasks")
async def all_tasks(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> models.AllTasksResponse:
    """All tasks in pages, in the order of their submission."""
    tracker, owner = _scheduler(request).task_tracker, _access(request).visible_owner(request)
    page = tracker.list_tasks(limit + 1, after, owner)
    return models.AllTasksResponse(
        total_tasks=tracker.count_tasks(owner),
        tasks=[_task(info) for info in page[:limit]],
        next=str(page[limit - 1].number) if len(page) > limit else None,
    )


@router.post("/task/clear")
async def clear(request: Request) -> models.ClearTasksResponse:
    """Forget all finished tasks."""
    scheduler = _scheduler(request)
    cleared = scheduler.task_tracker.clear()
    await scheduler.durable()
    await _access(request).record(request, "clear", "finished tasks of serving")
    return models.ClearTasksResponse(cleared=cleared)


@router.post("/notify/task_complete")
@router.post("/result/submit")
async def complete(request: Request, body: models.TaskCompletionNotification) -> models.ResultSubmitResponse:
    """An instance reports the end of a task. Repeats are harmless: the first report counts."""
    _visible(request, body.task_id, _access(request).reported_owner(request))
    scheduler = _scheduler(request)
    first = _completed(scheduler, body)
    await scheduler.durable()
    return models.ResultSubmitResponse(message="received" if first else "was received before")


# ---- the scheduler


@router.get("/health")
async def health(request: Request) -> models.HealthResponse:
    """Numbers of instances and of waiting tasks."""
    scheduler = _scheduler(request)
    queues = {row.ti_uuid: row.healthy for row in scheduler.queue_info()}
    return models.HealthResponse(
        instances=len(queues),
        healthy_instances=sum(queues.values()),
        waiting_tasks=scheduler.task_tracker.waiting,
    )


@router.post("/scheduler/set")
async def set_strategy(request: Request, body: models.SetStrategyRequest) -> models.SetStrategyResponse:
    """Use another strategy from the next request on; what is charged stays."""
    scheduler = _scheduler(request)
    scheduler.set_strategy(body.name, body.model_name)
    if scheduler.journal is not None:
        scheduler.journal.save_strategy(body.model_name, body.name)
        await scheduler.durable()
    await _access(request).record(request, f"set strategy {body.name}", body.model_name or "all models")
    return models.SetStrategyResponse()


# ---- instances that connect


@router.websocket(INSTANCE_SOCKET)
async def instance_socket(websocket: WebSocket) -> None:
    """A registered instance gets its tasks and reports results over one socket."""
    await websocket.accept()
    scheduler: SwarmPilotScheduler = websocket.app.state.serving
    try:
        async with asyncio.timeout(_REGISTER_WITHIN_S):
            instance = await _registered(websocket, scheduler)
    except TimeoutError:
        await websocket.close(_POLICY_VIOLATION, "no registration within 10 s")
        return
    except (WebSocketDisconnect, KeyError):  # KeyError: a binary message has no text
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await websocket.close(_POLICY_VIOLATION)
        return
    if instance is None:
        return

    async def send(message: Mapping[str, Any]) -> None:
        await websocket.send_text(json.dumps(message, separators=(",", ":")))

    disconnect = scheduler.connect_instance(instance, send)
    try:
        await send({"type": "registered", "instance_id": instance})
        while True:
            answers = _answers(scheduler, instance, await websocket.receive_text())
            if answers:
                await scheduler.durable()
            for answer in answers:
                await send(answer)
    except (WebSocketDisconnect, KeyError):  # KeyError: a binary message has no text
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await websocket.close()
    finally:
        disconnect()


async def _registered(websocket: WebSocket, scheduler: SwarmPilotScheduler) -> str | None:
    """The UUID of the instance that connects; None if it was refused."""
    first = _message(await websocket.receive_text())
    given = first.get("instance_id") if first.get("type") == "register" else None
    instance = scheduler.instance_uuid(given) if isinstance(given, str) else None
    if instance is None:
        sentence = "not a registration" if given is None else f"no instance {ascii(given)[:80]} is registered"
        await websocket.close(_POLICY_VIOLATION, _close_reason(sentence))
    return instance


def _answers(scheduler: SwarmPilotScheduler, instance: str, text: str) -> list[dict[str, Any]]:
    """The answers to one message of an instance."""
    message = _message(text)
    match message.get("type"):
        case "ping":
            return [{"type": "pong"}]
        case "task_ack":
            task_id, success = str(message.get("task_id")), bool(message.get("success", True))
            known = scheduler.acknowledge(task_id, instance, success, str(message.get("message") or ""))
            return [_ack(task_id, success=known, message="received" if known else "it is not given that task now")]
        case "result":
            return [_acknowledgement(scheduler, instance, message)]
        case "batch":
            messages = message.get("messages")
            rows = messages if isinstance(messages, list) else []
            return [_acknowledgement(scheduler, instance, one if isinstance(one, dict) else {}) for one in rows]
        case other:
            return [{"type": "error", "message": f"unknown message type {other!r}"}]


def _acknowledgement(scheduler: SwarmPilotScheduler, instance: str, message: Mapping[str, Any]) -> dict[str, Any]:
    task_id = str(message.get("task_id"))
    try:
        body = models.TaskCompletionNotification.model_validate({"instance_id": instance, **message})
        first = _completed(scheduler, body)
    except ValidationError as error:
        return _ack(task_id, success=False, message=_first_problem(error.errors()))
    except SchedulerError as error:
        return _ack(task_id, success=False, message=str(error))
    return _ack(task_id, success=True, message="received" if first else "was received before")


def _ack(task_id: str, *, success: bool, message: str) -> dict[str, Any]:
    return {"type": "ack", "task_id": task_id, "success": success, "message": message}


# ---- events


@router.websocket("/ws/task_events")
async def task_events(websocket: WebSocket) -> None:
    """Events of tasks as JSON: with ``?since=`` those after this number, with ``model=`` and ``id=`` only of these."""
    await websocket.accept()
    events: TaskEvents = websocket.app.state.serving_events
    access: Access = websocket.app.state.serving_access
    query = dict(websocket.query_params)
    try:
        since = _since(query.pop("since", None), events.number)
        query.pop("ticket", None)
        wanted = EventFilter.parse({**query, "types": SERVING})
        reader = events.subscribe(wanted, only_owner=access.visible_owner(websocket))
        unwatch = access.watch(websocket, reader)
    except SchedulerError as error:
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await websocket.close(_POLICY_VIOLATION, _close_reason(str(error)))
        return
    sending = asyncio.create_task(_send_events(websocket, events, reader, since))
    try:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass
    finally:
        reader.close()
        unwatch()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send_events(websocket: WebSocket, events: TaskEvents, reader: Subscription, since: int) -> None:
    async for batch in events.batches(reader, since):
        if batch.missed is not None:
            await websocket.send_text(json.dumps(missed_event(batch.missed)))
        for event in batch.events:
            await websocket.send_text(event.text)
    await websocket.close(_GOING_AWAY)


def _close_reason(text: str) -> str:
    """As many characters as a WebSocket may be closed with."""
    return text.encode(errors="replace")[:120].decode(errors="ignore")


def _since(given: str | None, now: int) -> int:
    if given is None:
        return now
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise ConfigurationError(f"since is {given[:50]!r}.", next_step="give the number of an event, 0 or more")
    return int(given)


# ---- pass-through


@router.get("/v1/models")
async def v1_models(request: Request) -> models.V1ModelsResponse:
    """The models that /v1 serves, in the shape of OpenAI's API."""
    return models.V1ModelsResponse(data=[models.V1Model(id=one) for one in _scheduler(request).v1_models()])


@router.get("/v1/models/{model_id:path}")
async def v1_model(request: Request, model_id: str) -> models.V1Model:
    """One of them."""
    if model_id not in _scheduler(request).v1_models():
        raise UnknownItemError(f"/v1 serves no model {model_id}.", next_step="use one of GET /v1/models")
    return models.V1Model(id=model_id)


@router.post("/v1/{path:path}")
async def v1(path: str) -> None:
    """Pass a request of OpenAI's API on to an instance of its ``model``, and the answer back as it arrives."""
    # HotPath answers it; this is the entry in the OpenAPI document


# ---- helpers


async def submitted(
    scheduler: SwarmPilotScheduler, body: models.QueueSubmitRequest, owner: str
) -> models.QueueSubmitResponse:
    (info,) = scheduler.submit(body.model_name, [(body.task_id, body.task_input, body.metadata)], owner)
    if isinstance(info, SchedulerError):
        raise info
    if scheduler.journal is not None:
        await scheduler.durable()
    return models.QueueSubmitResponse(task_id=info.task_id, scheduled_ti=info.ti_uuid or "")


def _completed(scheduler: SwarmPilotScheduler, body: models.TaskCompletionNotification) -> bool:
    return scheduler.handle_completion(body.task_id, body.instance_id, body.execution_time, body.result, body.error)


def _scheduler(request: Request) -> SwarmPilotScheduler:
    found: SwarmPilotScheduler = request.app.state.serving
    return found


def _access(request: Request) -> Access:
    found: Access = request.app.state.serving_access
    return found


def _visible(request: Request, task_id: str, owner: str | None) -> TaskInfo:
    """The task, if it is of this owner (None: of anybody). Raises UnknownItemError."""
    info = _scheduler(request).task_tracker.find(task_id)
    if info is None or owner not in {None, info.owner}:
        raise unknown_task(task_id)
    return info


def _task(info: TaskInfo) -> models.TaskQueryResponse:
    return models.TaskQueryResponse(
        task_id=info.task_id,
        task_status=info.task_status,
        scheduled_ti=info.ti_uuid or "",
        submit_time=info.submit_time,
        model_name=info.model_name,
        reason=info.reason or None,
        result=info.result,
        error=info.error,
    )


def _message(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _first_problem(errors: Any) -> str:
    first = errors[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the body'}: {first['msg']}"


def problem(status: int, code: str, message: str) -> dict[str, Any]:
    """A problem document (RFC 9457), with the fields that clients of OpenAI's API read."""
    title = HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": message}
    return {**document, "error": {"message": message, "type": code.lower(), "code": code}}


def problem_of(error: SchedulerError, *, openai: bool = False) -> dict[str, Any]:
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 503)
    if openai:  # as OpenAI's API answers; 409 would say that the request is wrong
        status = {422: 400, 409: 502}.get(status, status)
    return problem(status, error.code, str(error))


def _problem_headers(document: Mapping[str, Any]) -> dict[str, str]:
    return {"retry-after": "1"} if document["status"] in {429, 503} else {}


async def _answer_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, SchedulerError):
        document = problem_of(error)
    elif isinstance(error, RequestValidationError):
        document = problem(422, "CONFIGURATION", _first_problem(error.errors()))
    else:
        assert isinstance(error, HTTPException)
        status = 422 if error.status_code == 400 else error.status_code  # 400: FastAPI cannot parse the body
        document = problem(status, HTTPStatus(status).name, str(error.detail))
    return JSONResponse(document, document["status"], _problem_headers(document), media_type="application/problem+json")


class HotPath:
    """ASGI application in front of the framework: reads the body of each POST of the serving API within its limit, and
    answers /queue/submit and /v1/… itself. ``prefixes``: what precedes the paths."""

    def __init__(self, app: ASGIApp, state: State, prefixes: Sequence[str] = ("",)) -> None:
        self._app, self._state, self._prefixes = app, state, prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for prefix in self._prefixes:
                path = scope["path"][len(prefix) :]
                if scope["path"].startswith(prefix) and (path in _POSTS or path.startswith("/v1/")):
                    await self._post(scope, receive, send, prefix, path)
                    return
        await self._app(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send, prefix: str, path: str) -> None:
        access, openai = self._state.serving_access, path.startswith("/v1/")
        submits = path == "/queue/submit" and not scope["query_string"]
        connection = HTTPConnection(scope)
        try:
            if openai or submits:
                access.check_submit(connection)
            body = await _read(receive)
            if openai:
                passed = PassThrough(self._state.serving, access.owner(connection), access.private_headers)
                await passed(scope, receive, send, body, prefix)
            elif submits:
                request = _submission(body)
                answer = await submitted(self._state.serving, request, access.owner(connection))
                await _send(send, 200, b"application/json", answer.model_dump_json().encode())
            else:
                await self._app(scope, _replay(body, receive), send)
        except SchedulerError as error:
            await _send_json(send, access.problem(error, openai=openai))


_POSTS = {route.path for route in router.routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())}


def _submission(body: bytes) -> models.QueueSubmitRequest:
    try:
        return models.QueueSubmitRequest.model_validate_json(body)
    except ValidationError as error:
        problem = _first_problem(error.errors(include_url=False))
        raise ConfigurationError(f"{problem}.", next_step="correct the body") from None


class ServingApp:
    """ASGI application. Without a scheduler it creates one when the server starts, and closes it when that stops."""

    def __init__(self, scheduler: SwarmPilotScheduler | None = None) -> None:
        self._owned = scheduler is None
        self.routes = FastAPI(title="ray_multicluster_scheduler serving", version=__version__)
        self.routes.include_router(router)
        self.routes.add_api_route("/metrics", _metrics, include_in_schema=False)
        self.routes.state.serving_access = Access()
        self._hot_path = HotPath(self.routes, self.routes.state)
        for kind in (SchedulerError, RequestValidationError, HTTPException):
            self.routes.add_exception_handler(kind, _answer_error)
        if scheduler is not None:
            self._use(scheduler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif foreign := _foreign_name(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
                return
            sentence = f"{foreign} is no name or page of this machine; for others use rmcs up."
            await _send_json(send, problem(403, "NOT_ALLOWED", sentence))
        else:
            await self._hot_path(scope, receive, send)

    def _use(self, scheduler: SwarmPilotScheduler) -> None:
        self.routes.state.serving, self.routes.state.serving_events = scheduler, TaskEvents(scheduler)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        with ExitStack() as resources:
            try:
                if self._owned:
                    config, state = os.environ.get(CONFIG_VARIABLE), os.environ.get(STATE_VARIABLE)
                    self._use(await start_scheduler(config, state, resources))
            except SchedulerError as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.routes.state.serving_events.close()
            if self._owned:
                await self.routes.state.serving.close_async()
        await send({"type": "lifespan.shutdown.complete"})


async def _metrics(request: Request) -> Response:
    from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import (  # noqa: PLC0415
        CONTENT_TYPE,
        Exposition,
    )
    from ray_multicluster_scheduler.serving.metrics import add_serving  # noqa: PLC0415

    out = Exposition()
    add_serving(out, _scheduler(request))
    return Response(out.text(), media_type=CONTENT_TYPE)


async def start_scheduler(config: str | None, state: str | None, resources: ExitStack) -> SwarmPilotScheduler:
    """A scheduler on the running loop, with the instances of a configuration file and what a state folder keeps;
    ``resources`` closes the folder."""
    content = read_config(config) if config else ServingConfig.model_validate({})
    journal = resources.enter_context(open_journal(state)) if state else None
    scheduler = SwarmPilotScheduler(loop=asyncio.get_running_loop(), journal=journal)
    if journal is not None:
        scheduler.restore()
    await apply_config(content, scheduler)
    return scheduler


def _foreign_name(scope: Scope) -> str | None:
    """A Host or Origin other than this machine: a web page from elsewhere must not use a scheduler without tokens."""
    for name, value in scope["headers"]:
        if name in {b"host", b"origin"}:
            text = str(value, "latin-1")
            if re.sub(r":\d+$", "", text.rpartition("://")[2]) not in {"localhost", "127.0.0.1", "[::1]"}:
                return text
    return None


async def _read(receive: Receive) -> bytes:
    """The body of a request. Raises BodyTooLargeError."""
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        piece = message.get("body", b"")
        size += len(piece)
        if size > MAX_BODY:
            raise BodyTooLargeError(f"The body has more than {MAX_BODY:,} bytes.", next_step="send smaller requests")
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that begins with a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _send_json(send: Send, document: Mapping[str, Any]) -> None:
    extra = [(name.encode(), value.encode()) for name, value in _problem_headers(document).items()]
    await _send(send, document["status"], b"application/problem+json", json.dumps(document).encode(), *extra)


async def _send(send: Send, status: int, kind: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


app = ServingApp()
