"""RemoteRuntime: a control plane that runs elsewhere, as one in this process."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.callbacks import Callbacks
from ray_multicluster_scheduler.app.client_api.embedded import shutdown_story
from ray_multicluster_scheduler.app.client_api.embedded.loop_thread import shut_down
from ray_multicluster_scheduler.app.client_api.handles.item import Item, Outcome, Promise, wait_for
from ray_multicluster_scheduler.app.client_api.remote import wire
from ray_multicluster_scheduler.app.client_api.remote.inbound import Inbound
from ray_multicluster_scheduler.app.client_api.remote.outbound import Outbound, Parcel
from ray_multicluster_scheduler.app.client_api.remote.remote_known import (
    ACCEPT_TIMEOUT_S,
    RemoteKnown,
    RemoteOutput,
    document_of,
    path_of,
    wait_for_acceptance,
)
from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    SchedulerError,
    TaskSubmissionError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.common.object_argument import RESULT
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_shelf import PayloadShelf

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.arguments.arguments import Arguments

_log = get_logger(__name__)
_INTERRUPTED = "the program that submitted it was interrupted"


class RemoteRuntime(RemoteKnown):
    """A thread that speaks with the service: it hands over what is submitted, and hears what becomes of it.

    What was accepted goes on when the program ends. Raises SchedulerError if nobody answers.
    """

    lives_on = True

    def __init__(self, address: str, control_plane: str) -> None:
        self.address, self.control_plane = address, control_plane
        self.clock, self.shelf, self.output = SystemClock(), PayloadShelf(), RemoteOutput(self)
        self._lock = threading.Lock()
        self._live: dict[str, Item] = {}
        self._own: set[str] = set()
        """Of these: what was not there before, so that nobody else has submitted it."""
        self._ended: weakref.WeakValueDictionary[str, Item] = weakref.WeakValueDictionary()
        self._callbacks = Callbacks()
        self._closing = threading.Lock()
        self.closed = False
        super().__init__()
        try:
            self.run(self._connect())
        except BaseException:
            self._end()
            raise

    async def _connect(self) -> None:
        self._client = ServiceClient(self.address)
        try:
            self._fleet = await self._client.ask("GET", "/api/v1/fleet", patience=2.0)
        except BaseException:
            await self._client.close()
            raise
        self.settings = Settings.model_validate(self._fleet["settings"])
        self._outbound = Outbound(self._client, self.control_plane, self._was_accepted, self._was_refused)
        self._inbound = Inbound(
            self._client,
            self.control_plane,
            lambda: list(self._live.values()),
            self._live.get,
            self._item_over,
            lambda item, error: self._fail(item, error),  # noqa: PLW0108 - mypy knows no other way
        )

    # ---- items

    def submit(self, task: TaskDescription, arguments: Arguments | None = None) -> Item:
        objects, blobs = _objects(arguments, self, task.id)
        blobs |= {digest: self.shelf.get(digest) for digest in task.payloads if digest is not None}
        for digest in task.payloads:
            self.shelf.release(digest)
        item = Item(task)
        self.check_process()
        with self._lock:
            if self.closed:
                raise shut_down()
            known = self._live.get(task.id) or self._ended.get(task.id)
            if known is not None:
                if known.task.kind == task.kind:
                    return known
                raise ConfigurationError(
                    f"{task.kind} {task.name} was given an id or a key that a {known.task.kind} has.",
                    task_id=task.id,
                    next_step="use another submission_id or idempotency_key",
                )
            self._live[task.id] = item
        document = {"task": document_of(task), "objects": objects}
        self.soon(self._outbound.put, Parcel(item, document, blobs))
        if task.idempotency_key is None and task.content_key is None:
            return item
        # It may be another one again, whose id is not known before the service has answered.
        wait_for_acceptance(item)
        first = item.transition.task_id if item.transition is not None else item.id
        if first == item.id:
            return item
        with self._lock:
            self._live.pop(item.id, None)
        found = self.item(first)
        return item if found is None else found

    def let_catch_up(self) -> None:
        """The service says itself when it has enough."""

    def item(self, task_id: str) -> Item | None:
        known = self._live.get(task_id) or self._ended.get(task_id)
        if known is not None or self.loop_over:
            return known
        try:
            status = self._ask("GET", path_of(task_id))
        except UnknownItemError:
            return None
        if status["state"] == "EXPIRED":
            return None
        return self._adopt(status)

    def _adopt(self, status: Mapping[str, Any]) -> Item:
        """One that somebody else has submitted, or this program before it was started again."""
        kind, name = status["kind"], status["name"]
        job = JobDescription(entrypoint=name) if kind == "job" else None
        fresh = Item(TaskDescription(id=status["id"], kind="job" if job else "task", name=name, job=job))
        fresh.transition = wire.step_from_wire(status)
        with self._lock:
            item = self._live.get(fresh.id) or self._ended.get(fresh.id)
            if item is None:
                item = self._live[fresh.id] = fresh
                self.soon(self._inbound.add, item)
        return item

    def settled(self, task_id: str) -> Item | None:
        item = self.item(task_id)
        if item is not None:
            wait_for_acceptance(item)
        return item

    def check_known(self, task_id: str) -> None:
        if self.settled(task_id) is None:
            self._ask("GET", path_of(task_id))

    def whole_id(self, task_id: str) -> str:
        gang_id, _, at = task_id.rpartition(".")
        if at.isdecimal() and gang_id and self.item(task_id) is None and self.item(gang_id) is not None:
            return gang_id
        return task_id

    def is_call(self, item_id: str) -> bool:
        return False

    def unfinished(self) -> list[Item]:
        with self._lock:
            return list(self._live.values())

    def cancel(self, task_id: str, reason: str, *, force: bool) -> None:
        self.run(self._cancel(task_id, reason, force))

    async def _cancel(self, task_id: str, reason: str, force: bool) -> None:
        item = self._live.get(task_id)
        if item is not None and not item.accepted:  # it is on its way, and must be there first
            await self._until_accepted(item)
        await self._client.ask("POST", path_of(task_id, "cancel"), {"reason": reason, "force": force})

    async def _until_accepted(self, item: Item) -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        tell = lambda _: loop.call_soon_threadsafe(done.set)  # noqa: E731 - to be taken away again below
        item.watch_steps(tell)
        try:
            while not item.accepted:
                await done.wait()
                done.clear()
        finally:
            item.unwatch_steps(tell)

    def tell(self, event: events.Event) -> None:
        match event:
            case events.HoldRequested(task_id, reason):
                self._order(task_id, "hold", {"reason": reason})
            case events.ReleaseRequested(task_id):
                self._order(task_id, "release", {})
            case events.PriorityChanged(task_id, priority):
                self._order(task_id, "priority", {"priority": priority})
            case events.QueuePaused(what, name, reason):
                self._ask("POST", f"/api/v1/queue/{what}/{quote(name, safe='')}/pause", {"reason": reason})
            case events.QueueResumed(what, name):
                self._ask("POST", f"/api/v1/queue/{what}/{quote(name, safe='')}/resume", {})
            case events.CordonChanged(cluster, cordoned):
                verb = "cordon" if cordoned else "uncordon"
                self._ask("POST", f"/api/v1/clusters/{quote(cluster, safe='')}/{verb}", {})
            case _:
                raise TypeError(f"a service cannot be told of {event!r}")

    def _order(self, task_id: str, verb: str, said: Mapping[str, Any]) -> None:
        item = self._live.get(task_id)
        if item is not None:
            wait_for_acceptance(item)
        self._ask("POST", path_of(task_id, verb), said)

    def when_done(self, item: Promise, work: Callable[[], object]) -> None:
        item.watch(lambda _: self._callbacks.run(work))

    # ---- the end

    def shutdown(self, *, drain: bool) -> None:
        """What was accepted goes on; with ``drain`` it is waited for. Where the program asked for it (the decorator,
        wait_for_all_jobs), what it submitted itself is cancelled after Ctrl+C."""
        items = self.unfinished()
        if program.stopping():
            shutdown_story.stop(self, [item for item in items if item.id in self._own], _INTERRUPTED)
        elif drain:
            wait_for(items, len(items))
        else:
            deadline = time.monotonic() + ACCEPT_TIMEOUT_S
            for item in items:
                if not item.wait_accepted(max(0.0, deadline - time.monotonic())):
                    shutdown_story.say(f"{item.id} was not accepted by {self.address}, which does not answer")
        with self._closing:
            if self.loop_over:
                return
            self.closed = True
            self.give_up()
            try:
                self.run(self._close())
            finally:
                self._end()

    async def _close(self) -> None:
        await self._inbound.close()
        await self._outbound.close()
        await self._client.close()

    def _end(self) -> None:
        self.end_loop()
        self._callbacks.close()

    # ---- on the loop

    def _was_accepted(self, parcel: Parcel, answer: Mapping[str, Any]) -> None:
        item = parcel.item
        if answer["id"] == item.id:
            self._own.add(item.id)
        if item.transition is None:
            item.moved(wire.step_from_wire(answer))
        self._inbound.begin()

    def _was_refused(self, parcel: Parcel, error: SchedulerError) -> None:
        self._fail(parcel.item, error)

    def _fail(self, item: Item, error: SchedulerError) -> None:
        done = Complete(
            item.id,
            TaskState.FAILED,
            item.attempt,
            error.cluster,
            type(error).__name__,
            error.message,
            error.next_step or "",
        )
        self._item_over(item, Outcome(done, None))

    def _item_over(self, item: Item, outcome: Outcome) -> None:
        with self._lock:
            self._live.pop(item.id, None)
            self._own.discard(item.id)
            self._ended[item.id] = item
        item.ended(outcome)


def _objects(arguments: Arguments | None, runtime: RemoteRuntime, task_id: str) -> tuple[list[str], dict[str, bytes]]:
    """The names of the values among the arguments, and those that the service has to be given. Raises
    TaskSubmissionError for what it cannot have."""
    names: list[str] = []
    blobs: dict[str, bytes] = {}
    for source in () if arguments is None else arguments.sources:
        if isinstance(source, ObjectHandle):
            outcome = source._item.outcome
            assert outcome is not None
            name, data = source._blob(outcome)
            names.append(name)
            blobs[name] = data
        elif source._runtime is not runtime:
            raise TaskSubmissionError(
                f"{task_id} was given {source.id}, which another scheduler has.",
                task_id=task_id,
                next_step="wait for its result and pass that",
            )
        else:
            names.append(f"{RESULT}{source._item.id}")
    if arguments is not None and arguments.actors:
        raise TaskSubmissionError(
            f"{task_id} was given an actor, and actors cannot be used through a service yet.", task_id=task_id
        )
    return names, blobs
