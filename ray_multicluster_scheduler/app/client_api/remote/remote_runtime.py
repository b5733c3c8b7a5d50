"""RemoteRuntime: the ControlPlane interface over HTTP, made by UnifiedScheduler for programs that use a service."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.app.client_api.options import default_owner
from ray_multicluster_scheduler.app.client_api.remote.acceptance import Acceptance
from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.app.client_api.remote.deferred_arguments import check_own, send_when_ready
from ray_multicluster_scheduler.app.client_api.remote.program_packages import ProgramPackages
from ray_multicluster_scheduler.app.client_api.remote.remote_calls import RemoteActorCalls, RemoteCall, RemoteCalls
from ray_multicluster_scheduler.app.client_api.remote.result_poller import ResultPoller
from ray_multicluster_scheduler.app.client_api.remote.service_address import current_address
from ray_multicluster_scheduler.app.client_api.remote.service_client import RETRY_FOR_S, ServiceClient, read_events
from ray_multicluster_scheduler.app.client_api.remote.submission_sender import PendingSubmission, SubmissionSender
from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.control_characters import check_identifiers
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    QueueFullError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    JobDescription,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.common.model.item_fields import Kind
from ray_multicluster_scheduler.common.notices import notify, shorten, unread_failures
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.config.settings import NO_LIMITS, OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime import shutdown_report, wire
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventIterator
from ray_multicluster_scheduler.control_plane.runtime.explanation import is_member, member_summary
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.idempotency import check_same_item
from ray_multicluster_scheduler.control_plane.runtime.input_checks import check_priority
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Outcome, Promise, wait_for
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import CallbackThreads, LoopThread, shut_down_error
from ray_multicluster_scheduler.control_plane.runtime.outcome import as_read, note_failure, value_timeout
from ray_multicluster_scheduler.scheduler.cluster.environment import merge_runtime_env
from ray_multicluster_scheduler.scheduler.lifecycle import events as lifecycle_events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments

_log = get_logger(__name__)
JOBS_AT_ONCE = 1000
_MAX_REFUSALS = 10_000
_INTERRUPTED = "the program that submitted it was interrupted"
NOTIFY_AFTER_S = 1.0
"""How long the exit of a program may wait before it prints a notice."""
END_TIMEOUT_S = 10.0
"""How long to request the end of this program's actors; later the service ends them when the lease expires."""


class RemoteOutput:
    """Output of tasks, fetched from the service on demand."""

    def __init__(self, runtime: RemoteRuntime) -> None:
        self._runtime = runtime

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        if not attempt:
            return ""
        which = f"?attempt={attempt}" + ("" if stream is None else f"&stream={quote(stream)}")
        return self._runtime.fetch_text(f"/api/v1/items/{quote(task_id, safe='')}/logs{which}")

    def follow(self, task_id: str, progress: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        return self._runtime.follow_text(f"/api/v1/items/{quote(task_id, safe='')}/logs?follow=true")


class RemoteRuntime(LoopThread, ControlPlane):
    """Runs an event loop on a thread that sends submissions to the service and receives their results. Accepted items
    continue after the program ends. Raises SchedulerError if the service does not answer."""

    outlives_program = True

    def __init__(
        self,
        address: str,
        control_plane: str,
        runtime_env: Mapping[str, Any] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``runtime_env`` is the default for all submissions; an item's own takes precedence."""
        self.address, self.control_plane, self._runtime_env = address, control_plane, runtime_env
        self._credentials = credentials
        self.clock, self.payload_cache, self.output = SystemClock(), PayloadCache(hashes_large=True), RemoteOutput(self)
        self._lock = threading.Lock()
        self._live: dict[str, Item] = {}
        self._own: set[str] = set()
        """Ids in ``_live`` that this program created, as opposed to joined."""
        self._deferred: set[str] = set()
        self._refusals: deque[tuple[str, QueueFullError]] = deque(maxlen=_MAX_REFUSALS)
        """Items that were refused for a full queue; submissions raise those that the program has not read."""
        self._ended: weakref.WeakValueDictionary[str, Item] = weakref.WeakValueDictionary()
        self._callbacks = CallbackThreads()
        self._closing = threading.Lock()
        self.closed = False
        super().__init__()
        try:
            self.run(self._connect())
        except BaseException:
            self._end()
            raise

    async def _connect(self) -> None:
        self._client = ServiceClient(self.address, self._credentials)
        try:
            self._fleet = await self._client.ask("GET", "/api/v1/fleet", patience=2.0)
        except BaseException:
            await self._client.close()
            raise
        self.settings = Settings.model_validate(self._fleet["settings"])
        you = self._fleet.get("you") or {}
        steers = {"operator", "admin"} & set(you.get("roles", ()))
        self._submits_as = None if steers else you.get("user")
        self._client.most_bytes = self.settings.max_payload_bytes
        self._client.current_address = partial(current_address, str(self._fleet["control_plane"]), os.environ)
        self._sender = SubmissionSender(
            self._client, self.control_plane, self._was_accepted, lambda pending, error: self._fail(pending.item, error)
        )
        self.acceptance = Acceptance(lambda: self._client.address, lambda: self._sender.last_error, self.is_deferred)
        self.calls = RemoteCalls(self, self._client, lambda: self._poller.begin())  # noqa: PLW0108 - created below
        self._poller = ResultPoller(
            self._client,
            self.control_plane,
            lambda: [*self._live.values(), *self.calls.open()],
            lambda name: self._live.get(name) or self.calls.find(name),
            self._promise_over,
            self._refused,
            self.calls.set_mailbox,
        )

    # ---- items

    def submit(self, task: TaskDescription, arguments: Arguments | None = None, *, get_if_exists: bool = False) -> Item:
        actor = task.actor
        if task.streams or (task.runs_actors and not (actor is not None and actor.detached)):
            task = replace(task, program=self.control_plane)
        task = self.owned(task)
        if self._runtime_env:
            task = replace(task, runtime_env=merge_runtime_env(self._runtime_env, task.runtime_env))
        check_identifiers(task)
        check_own(arguments, self, task.id)
        self._raise_refusal()
        blobs = {digest: self.payload_cache.get(digest) for digest in task.payload_digests if digest is not None}
        for digest in task.payload_digests:
            self.payload_cache.release(digest)
        check_priority(self, task)
        item = Item(task)
        self.check_process()
        with self._lock:
            if self.closed:
                raise shut_down_error()
            known = self._live.get(task.id) or self._ended.get(task.id)
            if known is not None:
                check_same_item(task, known.task, adopted=not known.task.submitted_at)
                return known
            self._live[task.id] = item
        document: dict[str, Any] = {"task": document_of(task)}
        if get_if_exists:
            document["get_if_exists"] = True
        send_when_ready(self, PendingSubmission(item, document, blobs), arguments)
        if task.idempotency_key is None and task.content_key is None and not (actor and actor.public_name):
            return item
        # It may join an existing item, whose id is in the answer of the service.
        self.acceptance.wait(item)
        first = item.transition.task_id if item.transition is not None else item.id
        if first == item.id:
            return item
        with self._lock:
            self._live.pop(item.id, None)
        found = self.item(first)
        return item if found is None else found

    def _raise_refusal(self) -> None:
        """Raises QueueFullError if the service refused earlier submissions for that and the program has not asked for
        them: submissions travel in batches. One is raised at a time."""
        while self._refusals:
            item_id, refusal = self._refusals.popleft()
            if unread_failures.read(item_id) is not None:
                raise refusal

    def send(self, pending: PendingSubmission) -> None:
        """Queue a submission whose arguments are all available."""
        self.call_soon(self._sender.put, pending)

    def defer(self, item: Item) -> None:
        """Mark an item as waiting here for one of its arguments."""
        self._deferred.add(item.id)

    def end_deferral(self, item: Item) -> bool:
        """Remove the mark of :meth:`defer`. False: it was removed before."""
        with self._lock:
            there = item.id in self._deferred
            self._deferred.discard(item.id)
        return there

    def is_deferred(self, item: Item) -> bool:
        """Does the item wait here before it is sent, so that other submissions cannot refer to it yet?"""
        return item.scheduled_id in self._deferred and not item.accepted

    def deferred_items(self, ids: Sequence[str]) -> list[Item]:
        return [item for one in ids if one in self._deferred and (item := self._live.get(one)) is not None]

    def throttle(self) -> None:
        """No-op: the service applies its own back-pressure."""

    def item(self, task_id: str) -> Item | None:
        known = self._live.get(task_id) or self._ended.get(task_id)
        if known is not None or self.loop_ended:
            return known
        try:
            status = self._ask("GET", path_of(task_id))
        except UnknownItemError:
            return None
        if status["state"] == "EXPIRED":
            return None
        return self._adopt(status)

    def _adopt(self, status: Mapping[str, Any]) -> Item:
        """Create the item for a status from the service, submitted by another program or before a restart."""
        kind, name = status["kind"], status["name"]
        job = JobDescription(entrypoint=name) if kind == "job" else None
        actor = ActorDescription.from_dict(status["actor"]) if kind == "actor" else None
        seen: Kind = "job" if job else "actor" if actor else "task"
        repeats = status.get("repeats")
        fresh = Item(TaskDescription(id=status["id"], kind=seen, name=name, job=job, actor=actor, repeats=repeats))
        fresh.transition = wire.step_from_wire(status)
        with self._lock:
            item = self._live.get(fresh.id) or self._ended.get(fresh.id)
            if item is None:
                item = self._live[fresh.id] = fresh
                self.call_soon(self._poller.add, item)
        return item

    def found(self, path: str) -> Item:
        """Return the item that the service returns at this path. Raises UnknownItemError."""
        return self._adopt(self._ask("GET", path))

    def accepted_item(self, task_id: str) -> Item | None:
        item = self.item(task_id)
        if item is not None:
            self.acceptance.wait(item)
        return item

    def unfinished(self) -> list[Item]:
        with self._lock:
            return list(self._live.values())

    def cancel(self, task_id: str, reason: str, *, force: bool) -> bool:
        return self.run(self._cancel(task_id, reason, force=force))

    async def _cancel(self, task_id: str, reason: str, *, force: bool) -> bool:
        item = self._live.get(task_id)
        if item is not None and self.is_deferred(item) and self.end_deferral(item):
            message = f"{task_id} was cancelled before it was sent: {reason}"
            done = Complete(task_id, TaskState.CANCELLED, 0, None, "TaskCancelledError", message)
            self.end_item(item, Outcome(done, None))
            return True
        if item is not None and not item.accepted:  # in transit: the service must have it first
            await self._until_accepted(item)
        answer = await self._client.ask("POST", path_of(task_id, "cancel"), {"reason": reason, "force": force})
        if item is not None:
            item.cancelling = True
        return bool(answer["changed"])

    async def _until_accepted(self, item: Item) -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        on_transition = lambda _: loop.call_soon_threadsafe(done.set)  # noqa: E731 - unregistered below
        item.watch_transitions(on_transition)
        try:
            while not item.accepted:
                await done.wait()
                done.clear()
        finally:
            item.unwatch_transitions(on_transition)

    def when_done(self, item: Promise, work: Callable[[], object]) -> None:
        item.watch(lambda _: self._callbacks.run(work))

    # ---- queries and requests: see ControlPlane for what each means

    def check_known(self, task_id: str) -> None:
        if self.accepted_item(task_id) is None:
            self._ask("GET", path_of(task_id))

    def scheduled_item_id(self, task_id: str) -> str:
        gang_id, _, at = task_id.rpartition(".")
        if at.isdecimal() and gang_id and self.item(task_id) is None and self.item(gang_id) is not None:
            return gang_id
        return task_id

    def is_call(self, item_id: str) -> bool:
        return self.calls.was_issued(item_id)

    def calls_of(self, actor: Item) -> RemoteActorCalls:
        return RemoteActorCalls(actor, self.calls)

    def cancel_call(self, call_id: str, *, force: bool) -> bool:
        return self.calls.cancel(call_id, force=force)

    def explain_call(self, call: CallPromise) -> dict[str, Any]:
        assert isinstance(call, RemoteCall)
        return self.calls.explain(call)

    def explain(self, task_id: str) -> dict[str, Any]:
        if self.is_call(task_id):
            return self.calls.explain_by_id(task_id)
        item = self._live.get(task_id)
        gang = None if item is not None else self._live.get(task_id.rpartition(".")[0])
        if gang is not None and is_member(gang.task, task_id):
            item = gang
        if item is not None and not item.accepted:
            why = f": {self._sender.last_error}" if self._sender.last_error else "."
            unconfirmed = f"{self._client.address} has not confirmed yet that it accepted it{why}"
            sentence = f"{unconfirmed} While this program runs, it is retried"
            explanation = Explanation(id=item.id, state=str(item.state), code="NOT_ACCEPTED", sentence=sentence)
            if item.task.gang is not None and item is gang:
                explanation["member"] = member_summary(task_id, [one.name for one in item.task.gang.members])
            return explanation
        return as_read(Explanation(**self._ask("GET", path_of(task_id, "explain"))))

    def kept_value(self, outcome: Outcome, timeout: float | None = None) -> bytes:
        async def fetched() -> bytes:
            async with asyncio.timeout(timeout):
                return await self._client.fetch(path_of(outcome.completion.task_id, "result"))

        try:
            return self.run(fetched())
        except TimeoutError:
            raise value_timeout(outcome, timeout or 0.0) from None

    def plan(self, task: TaskDescription) -> SchedulingDecision:
        document = document_of(self.owned(task))
        return SchedulingDecision.from_dict(self._ask("POST", "/api/v1/plan", {"task": document}))

    def owned(self, task: TaskDescription) -> TaskDescription:
        """Set the owner to the user of the token, if the task does not name one."""
        if self._submits_as is None or task.owner != default_owner():
            return task
        return replace(task, owner=self._submits_as)

    def job_info(self, job_id: str) -> dict[str, Any]:
        item = self._live.get(job_id)
        if item is not None:
            self.acceptance.wait(item)
        answer: dict[str, Any] = self._ask("GET", f"/api/v1/jobs/{quote(job_id, safe='')}")
        return as_read(answer)

    def job_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        path, more = f"/api/v1/jobs?limit={JOBS_AT_ONCE}", ""
        while True:
            page = self._ask("GET", path + more)
            rows += map(as_read, page["jobs"])
            if page["after"] is None:
                return rows[::-1]
            more = f"&after={quote(page['after'], safe='')}"

    def actor_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._ask("GET", "/api/v1/actors")["actors"]
        return rows

    def events(self, wanted: EventFilter, since: int | None) -> EventIterator:
        found = EventIterator(self, read_events(self._client, wanted, since))
        found.begin(RETRY_FOR_S)
        return found

    def job_log(self, job_id: str) -> str:
        self.accepted_item(job_id)
        return self.fetch_text(path_of(job_id, "logs"))

    def follow_job_log(self, job_id: str) -> Iterator[str]:
        self.accepted_item(job_id)
        return self.follow_text(f"{path_of(job_id, 'logs')}?follow=true")

    def fetch_text(self, path: str) -> str:
        return self.run(self._client.fetch(path)).decode(errors="replace")

    def follow_text(self, path: str) -> Iterator[str]:
        """Yield text as it arrives, fetched on demand."""
        stream = self._client.stream(path)
        assert isinstance(stream, AsyncGenerator)

        async def one_more() -> str | None:
            return await anext(stream, None)

        try:
            while (piece := self.run(one_more())) is not None:
                yield piece
        finally:
            self.spawn(stream.aclose())

    def post_user_event(self, event: lifecycle_events.Event) -> None:
        match event:
            case lifecycle_events.HoldRequested(task_id, reason):
                self._order(task_id, "hold", {"reason": reason})
            case lifecycle_events.ReleaseRequested(task_id):
                self._order(task_id, "release", {})
            case lifecycle_events.PriorityChanged(task_id, priority):
                self._order(task_id, "priority", {"priority": priority})
            case lifecycle_events.QueuePaused(what, name, reason):
                self._ask("POST", f"/api/v1/queue/{what}/{quote(name, safe='')}/pause", {"reason": reason})
            case lifecycle_events.QueueResumed(what, name):
                self._ask("POST", f"/api/v1/queue/{what}/{quote(name, safe='')}/resume", {})
            case lifecycle_events.OwnerLimitsChanged(owner, None):
                self._ask("DELETE", f"/api/v1/owners/{quote(owner, safe='')}")
            case lifecycle_events.OwnerLimitsChanged(owner, limits):
                assert limits is not None
                self._ask("PUT", f"/api/v1/owners/{quote(owner, safe='')}", limits.model_dump())
            case lifecycle_events.CordonChanged(cluster, cordoned, reason):
                verb, body = ("cordon", {"reason": reason}) if cordoned else ("uncordon", {})
                self._ask("POST", f"/api/v1/clusters/{quote(cluster, safe='')}/{verb}", body)
            case _:
                raise TypeError(f"no request to the service for {event!r}")

    def _order(self, task_id: str, verb: str, body: Mapping[str, Any]) -> None:
        item = self._live.get(task_id)
        if item is not None:
            self.acceptance.wait(item)
        try:
            self._ask("POST", path_of(task_id, verb), body)
        except SchedulerError as error:
            if type(error) is not SchedulerError or not self._is_over(task_id):  # a finished item ignores the request
                raise

    def _is_over(self, task_id: str) -> bool:
        try:
            state = self._ask("GET", path_of(task_id))["state"]
        except SchedulerError:
            return False
        return state == "EXPIRED" or TaskState(state).terminal

    @property
    def homes(self) -> Sequence[str]:
        return list(dict.fromkeys([str(Path.home()), *self._fleet["homes"]]))

    def check_cluster(self, name: str) -> None:
        known = self._fleet["clusters"]
        if name not in known:
            raise ConfigurationError(
                f"There is no cluster {name!r}.", next_step=f"use one of {', '.join(known) or 'none'}"
            )

    def limits_of(self, owner: str, *, refresh: bool = False) -> OwnerLimits:
        if refresh:
            self._fleet = self._ask("GET", "/api/v1/fleet")
        found = self._fleet["settings"]["owners"].get(owner)
        return NO_LIMITS if found is None else OwnerLimits.model_validate(found)

    def cluster_rows(self, refresh: Sequence[str] | None = ()) -> list[dict[str, Any]]:
        for name in refresh or ():
            self._ask("GET", f"/api/v1/clusters/{quote(name, safe='')}")
        rows: list[dict[str, Any]] = self._ask("GET", f"/api/v1/clusters?refresh={str(refresh is None).lower()}")[
            "clusters"
        ]
        return rows

    def node_rows(self, clusters: Sequence[str]) -> list[dict[str, Any]]:
        rows = self._ask("GET", "/api/v1/nodes")["nodes"]
        return [row for row in rows if row["Cluster"] in clusters]

    def is_drained(self, cluster: str) -> bool | None:
        drained: bool | None = self._ask("GET", f"/api/v1/clusters/{quote(cluster, safe='')}/drained")["drained"]
        return drained

    def declare_dead(self, cluster: str, reason: str, *, force: bool) -> list[str]:
        body = {"reason": reason, "force": force}
        path = f"/api/v1/clusters/{quote(cluster, safe='')}/declare-dead"
        # Not retried: a repetition would also settle items that arrived after the first request.
        items: list[str] = self.run(self._client.ask("POST", path, body, patience=0.0))["items"]
        return items

    async def create_deployment(self, path: str, options: Mapping[str, Any], template: TaskDescription) -> None:
        """On the loop: upload the payloads and packages of an actor, and ask for a deployment of it. Raises
        ConfigurationError."""
        template, env = self.owned(template), merge_runtime_env(self._runtime_env or {}, template.runtime_env)
        packages = ProgramPackages(self._client)
        try:
            task = document_of(replace(template, runtime_env=await packages.resolved(env)))
            for digest in filter(None, template.payload_digests):
                data = self.payload_cache.get(digest)
                self.payload_cache.release(digest)
                await self._client.upload(digest, data)
            await self._client.ask("POST", path, {**options, "task": task})
        finally:
            await packages.close()

    async def ask_async(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """On the loop: send a request to the service; returns its answer."""
        return await self._client.ask(method, path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.run(self.ask_async(method, path, body))

    # ---- the end

    def shutdown(self, *, drain: bool, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Disconnect; accepted items continue, and ``drain`` waits for them. After Ctrl+C the items of this program are
        cancelled if it requested that (the decorator, wait_for_all_jobs)."""
        unfinished = self.unfinished()
        items = [item for item in unfinished if not item.task.runs_actors]
        if program.stopping():
            shutdown_report.stop(self, [item for item in items if item.id in self._own], _INTERRUPTED)
        elif drain:
            calls = [call for call in self.calls.open() if call.cancel_asked is None]
            waited = [*(item for item in items if not item.cancelling), *calls]
            wait_for(waited, len(waited))
        else:
            self.acceptance.wait_at_the_end(items)
        self.calls.refuse("was shut down")  # before their actors end
        actors = [item.id for item in unfinished if item.task.program == self.control_plane and item.outcome is None]
        if actors and not self.loop_ended:
            self.run(self._cancel_all(actors))
        with self._closing:
            if self.loop_ended:
                return
            self.closed = True
            self.cancel_waiters()
            try:
                self.run(self._close())
            finally:
                self._end()

    async def _cancel_all(self, ids: Sequence[str]) -> None:
        """Cancel the actors that are not detached; after a timeout the service ends them when the lease expires."""
        asked = [asyncio.ensure_future(self._cancel(one, "its program has ended", force=True)) for one in ids]
        _, silent = await asyncio.wait(asked, timeout=min(NOTIFY_AFTER_S, END_TIMEOUT_S))
        if silent:
            left = [one for one, task in zip(ids, asked, strict=True) if not task.done()]
            notify(
                f"waiting at most {END_TIMEOUT_S:g} s for {self.address} to end {shorten(left)}; "
                "otherwise it ends them when this program's lease expires"
            )
            await asyncio.wait(silent, timeout=max(0.0, END_TIMEOUT_S - NOTIFY_AFTER_S))
        for one, task in zip(ids, asked, strict=True):
            why = "no answer" if not task.done() else task.exception()
            if why is not None:
                _log.warning("%s did not confirm the end of actor %s: %s", self.address, one, why)
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    async def _close(self) -> None:
        await self._poller.close()
        await self.calls.close()
        await self._sender.close()
        await self._client.close()

    def _end(self) -> None:
        self.end_loop()
        self._callbacks.close()

    # ---- on the loop

    def _was_accepted(self, pending: PendingSubmission, answer: Mapping[str, Any]) -> None:
        item = pending.item
        if answer["id"] == item.id:
            self._own.add(item.id)
        if item.transition is None:
            item.moved(wire.step_from_wire(answer))
        self._poller.begin()

    def _refused(self, promise: Promise, error: SchedulerError) -> None:
        if isinstance(promise, Item):
            self._fail(promise, error)
        elif isinstance(promise, RemoteCall):
            self.calls.end(promise, promise.failed(error))

    def _promise_over(self, promise: Promise, outcome: Outcome) -> None:
        if isinstance(promise, RemoteCall):
            self.calls.end(promise, outcome)
        elif isinstance(promise, Item):
            self.end_item(promise, outcome)

    def _fail(self, item: Item, error: SchedulerError) -> None:
        kind, step = type(error).__name__, error.next_step or ""
        done = Complete(item.id, TaskState.FAILED, item.attempt, error.cluster, kind, error.message, step)
        self.end_item(item, Outcome(done, None), error if isinstance(error, QueueFullError) else None)

    def end_item(self, item: Item, outcome: Outcome, refusal: QueueFullError | None = None) -> None:
        """End an item: the service reported its outcome or its ``refusal``, or it will never be sent."""
        with self._lock:
            self._live.pop(item.id, None)
            self._own.discard(item.id)
            self._ended[item.id] = item
        if item.task.submitted_at:  # else another program submitted it
            note_failure(item, outcome)
        if refusal is not None:
            self._refusals.append((item.id, refusal))
        item.ended(outcome)


def path_of(item_id: str, verb: str = "") -> str:
    return f"/api/v1/items/{quote(item_id, safe='')}" + (f"/{verb}" if verb else "")


def document_of(task: TaskDescription) -> dict[str, Any]:
    """Return the task as a JSON document without empty fields."""
    return {name: value for name, value in task.to_dict().items() if value not in _EMPTY}


_EMPTY: tuple[Any, ...] = (None, (), {}, [])
