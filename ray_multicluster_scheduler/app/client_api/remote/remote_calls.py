"""RemoteCalls: sends actor method calls from a program to its service, each at most once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import aiohttp

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.remote.deferred_arguments import bytes_of, check_own, names_of
from ray_multicluster_scheduler.app.client_api.remote.service_client import RETRY_FOR_S, ServiceClient
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import (
    SchedulerError,
    ServiceUnavailableError,
    UnknownItemError,
    error_from_problem,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.object_argument import ACTOR
from ray_multicluster_scheduler.control_plane.runtime import explanation, wire
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentFailure, Arguments, ArgumentWatch
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Outcome
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import shut_down_error
from ray_multicluster_scheduler.control_plane.runtime.outcome import note_failed_call
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime

MAX_CALLS = 500
MAX_BYTES = 8 * 2**20
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
_MAX_REMEMBERED = 10_000
_log = get_logger(__name__)


class RemoteCalls:
    """The pending calls of one program. Created on the loop; `put`, `wake` and `end` are thread-safe. The service does
    not store calls durably. After its restart the program sends the pending ones again, and the service asks the
    clusters of their actors; a call that they do not know either fails."""

    def __init__(self, runtime: RemoteRuntime, client: ServiceClient, watch: Callable[[], object]) -> None:
        self._runtime, self._client, self._watch = runtime, client, watch
        self._prefix, self._numbers, self._newest = f"call-{runtime.control_plane}-", itertools.count(1), 0
        self._lock = threading.Lock()
        self._refusal: str | None = None
        self._open: dict[str, RemoteCall] = {}
        self._out: deque[RemoteCall] = deque()
        self._uploaded: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._mailbox: str | None = None

    # ---- thread-safe

    def new_id(self) -> str:
        self._newest = number = next(self._numbers)
        return f"{self._prefix}{number}"

    def was_issued(self, call_id: str) -> bool:
        number = call_id.removeprefix(self._prefix)
        return call_id.startswith(self._prefix) and number.isdecimal() and 0 < int(number) <= self._newest

    def homes(self) -> Sequence[str]:
        return self._runtime.homes

    def check_own(self, arguments: Arguments, actor_id: str) -> None:
        """Raises TaskSubmissionError for a value or an actor that another scheduler has."""
        check_own(arguments, self._runtime, f"a call of {actor_id}")

    def find(self, call_id: str) -> RemoteCall | None:
        return self._open.get(call_id)

    def open(self) -> list[RemoteCall]:
        """Return the pending calls, oldest first."""
        with self._lock:
            return list(self._open.values())

    def put(self, call: RemoteCall) -> None:
        """Raises SchedulerError after the end, and in the child of a fork."""
        self._runtime.check_process()
        with self._lock:
            if self._refusal is not None:
                raise shut_down_error(self._refusal)
            self._open[call.id] = call
            call.actor.waiting.append(call)
        self.wake(call.actor)

    def wake(self, actor: RemoteActorCalls) -> None:
        """Send the calls of this actor that are ready."""
        self._runtime.call_soon(self._send_ready, actor)

    def end(self, call: RemoteCall, outcome: Outcome) -> None:
        with self._lock:
            known = self._open.pop(call.id, None)
        if known is not None and call.left:
            call.actor.unanswered -= 1
        if call.watch_arguments is not None:
            call.watch_arguments.stop()
        call.unpack()
        note_failed_call(call, outcome)
        call.ended(outcome)

    def cancel(self, call_id: str, *, force: bool) -> bool:
        """Cancel a call: one that was not sent is dropped, for any other the service is asked once it has the call.
        False: it has ended already."""
        call = self._open.get(call_id)
        if call is None:
            return False
        self._runtime.run(self._cancel(call, force))
        return True

    def explain_by_id(self, call_id: str) -> dict[str, Any]:
        call = self._open.get(call_id)
        return explanation.answered_call(call_id) if call is None else self.explain(call)

    def explain(self, call: RemoteCall) -> dict[str, Any]:
        """Explain the state of a call; once the service has it, the service does."""
        if call.outcome is not None:
            return Explanation(call.summary("", call.outcome.completion.message, 0))
        if call.watch_arguments is not None and not call.complete:
            return Explanation(call.summary("WAITS", call.watch_arguments.waits_for, 0))
        if not call.left and not call.actor.serves:
            sentence = f"waits for the actor, which is {call.actor.item.state}"
            older = itertools.takewhile(lambda other: other is not call, self.open())
            before = sum(1 for other in older if other.actor is call.actor)
            return Explanation(call.summary("WAITS", sentence, before))
        try:
            path = f"/api/v1/calls/{quote(call.id, safe='')}/explain"
            return Explanation(self._runtime.run(self._client.ask("GET", path)))
        except (UnknownItemError, ServiceUnavailableError):
            sentence = f"{self._client.address} has not accepted it yet; while this program runs, it is retried"
            if call.taken:
                sentence = f"{self._client.address} has accepted it and reports no more; its result may be on its way"
            return Explanation(call.summary("SENT" if call.taken else "NOT_ACCEPTED", sentence, 0))

    def refuse(self, why: str) -> None:
        """Accept no more calls and cancel all pending ones."""
        with self._lock:
            self._refusal = self._refusal or why
        for call in self.open():
            self.end(call, call.cancelled("its program has ended, and did not wait for it"))

    # ---- on the loop

    def set_mailbox(self, mailbox: str) -> None:
        """Send the pending calls again if the service has a new mailbox for this program: it may have lost them."""
        if mailbox == self._mailbox:
            return
        self._mailbox = mailbox
        again = [call for call in self.open() if call.taken]
        for call in again:
            call.taken = False
        self._out.extendleft(reversed(again))
        self._begin()

    async def close(self) -> None:
        tasks = [*self._ending, *([] if self._sending is None else [self._sending])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cancel(self, call: RemoteCall, force: bool) -> None:
        if call.outcome is not None:
            return
        if not call.left:
            self.end(call, call.cancelled("the caller asked for it, before it was sent"))
            self._send_ready(call.actor)
            return
        call.cancel_asked = force or call.cancel_asked is True
        if call.taken:
            await self._request_cancel(call, RETRY_FOR_S)

    async def _request_cancel(self, call: RemoteCall, patience: float | None = None) -> None:
        path = f"/api/v1/calls/{quote(call.id, safe='')}/cancel"
        await self._client.ask("POST", path, {"force": call.cancel_asked is True}, patience=patience)

    def _send_ready(self, actor: RemoteActorCalls) -> None:
        self._out.extend(actor.ready())
        self._begin()

    def _begin(self) -> None:
        if self._out and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        pause = _FIRST_PAUSE_S
        while self._out:
            await asyncio.sleep(0)  # batch with submissions of the same moment
            batch = self._next_batch()
            try:
                await self._send(batch)
            except ServiceUnavailableError:
                self._out.extendleft(call for call, _ in reversed(batch))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
            except SchedulerError as error:
                self._fail(batch, error)
            except Exception as error:  # noqa: BLE001 - a bug: it is unknown what was sent
                _log.exception("sending actor calls to the service failed unexpectedly")
                self._fail(batch, SchedulerError(f"Sending calls to the service failed unexpectedly: {error!r}."))
            else:
                pause = _FIRST_PAUSE_S

    def _fail(self, batch: Sequence[tuple[RemoteCall, PackedCall]], error: SchedulerError) -> None:
        for call, _ in batch:
            self.end(call, call.failed(error))

    def _next_batch(self) -> list[tuple[RemoteCall, PackedCall]]:
        batch: list[tuple[RemoteCall, PackedCall]] = []
        size = 0
        while self._out and len(batch) < MAX_CALLS and size < MAX_BYTES:
            call = self._out.popleft()
            if call.outcome is not None:
                continue
            try:
                packed = call.pack()
            except SchedulerError as error:  # a value among its arguments was lost
                self.end(call, call.failed(error))
                continue
            batch.append((call, packed))
            size += packed.size
        return batch

    async def _upload_large(self, batch: Sequence[tuple[RemoteCall, PackedCall]]) -> None:
        """Upload the large payloads of a batch; a call whose upload fails is refused."""
        if len(self._uploaded) > _MAX_REMEMBERED:
            self._uploaded.clear()
        for call, packed in batch:
            try:
                for digest, data in packed.blobs.items():
                    if len(data) > wire.INLINE_BYTES and digest not in self._uploaded and call.outcome is None:
                        await self._client.upload(digest, data)
                        self._uploaded.add(digest)
            except SchedulerError as error:
                self.end(call, call.failed(error))

    async def _send(self, batch: Sequence[tuple[RemoteCall, PackedCall]]) -> None:
        """Send a batch. Raises ServiceUnavailableError if it has to be sent again."""
        await self._upload_large(batch)
        batch = [pending for pending in batch if pending[0].outcome is None]  # some were cancelled before this
        if not batch:
            return
        blobs: dict[str, bytes] = {}
        for call, packed in batch:
            blobs.update((name, data) for name, data in packed.blobs.items() if len(data) <= wire.INLINE_BYTES)
            if not call.left:
                call.left = True
                call.actor.unanswered += 1
        body = {
            "client": self._runtime.control_plane,
            "calls": [{**call.document(), **packed.body} for call, packed in batch],
            "blobs": wire.bytes_to_wire(blobs),
        }
        mailbox = self._mailbox  # it may change before the error arrives
        try:
            answer = await self._client.ask("POST", "/api/v1/calls", body, patience=0.0)
        except ServiceUnavailableError as error:
            for call, _ in batch:
                if error.__cause__ is None or isinstance(error.__cause__, aiohttp.ClientConnectorError):
                    self._mark_not_sent(call)  # no connection, or an answer that refuses the request
                elif call.first:
                    call.mailbox, call.first = mailbox, False
            raise
        self._handle_answer([call for call, _ in batch], self._answers(answer, len(batch)))
        self._watch()

    def _answers(self, answer: Any, number: int) -> list[dict[str, Any]]:
        """Validate the answer. Raises SchedulerError: it may come from another program at that address."""
        results = answer.get("calls") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != number or not all(isinstance(one, dict) for one in results):
            raise SchedulerError(
                f"{self._client.address} sent an invalid answer to actor calls: {str(answer)[:100]}",
                next_step="check that this is the address of a service of the same version",
            )
        return results

    def _handle_answer(self, batch: Sequence[RemoteCall], results: Sequence[dict[str, Any]]) -> None:
        problems = [one.get("problem") for one in results]
        lacking = [set(wire.missing_blobs(problem)) if problem else set() for problem in problems]
        forgotten = self._uploaded & set().union(*lacking)
        self._uploaded -= forgotten
        again = []
        for call, problem, missing in zip(batch, problems, lacking, strict=True):
            if missing & forgotten:
                self._mark_not_sent(call)
                again.append(call)
            elif problem:
                self.end(call, call.failed(error_from_problem(problem)))
            else:
                self._mark_taken(call)
        self._out.extendleft(reversed(again))

    def _mark_not_sent(self, call: RemoteCall) -> None:
        """The service is known not to have the call."""
        if call.left and call.first and call.outcome is None:
            call.left = False
            call.actor.unanswered -= 1

    def _mark_taken(self, call: RemoteCall) -> None:
        call.taken, call.first, call.mailbox = True, False, None
        call.unpack()
        if call.cancel_asked is not None and call.outcome is None:
            task = asyncio.get_running_loop().create_task(self._request_cancel(call))
            self._ending.add(task)
            task.add_done_callback(self._on_cancel_sent)

    def _on_cancel_sent(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a call could not be cancelled: %s", error)


class PackedCall(NamedTuple):
    """The payloads of a call and the fields of its document that refer to them."""

    blobs: dict[str, bytes]
    body: dict[str, Any]

    @property
    def size(self) -> int:
        """Approximate bytes sent inline with the call."""
        return 500 + sum(len(data) for data in self.blobs.values() if len(data) <= wire.INLINE_BYTES)


class RemoteCall(CallPromise):
    """One actor call. Created by the calling thread, then modified on the loop only.

    ``left``: it was sent, so the service may have it. ``first``: the service cannot have forwarded it yet. ``taken``:
    the service confirmed it. ``mailbox``: the mailbox of the program at the first send; while the service still has it,
    it has lost no call. ``cancel_asked``: whether a cancellation is pending, and its ``force``.
    """

    __slots__ = (
        "arguments",
        "cancel_asked",
        "complete",
        "first",
        "has_paths",
        "left",
        "mailbox",
        "packed",
        "taken",
        "watch_arguments",
    )

    actor: RemoteActorCalls

    def __init__(self, call_id: str, actor: RemoteActorCalls, method: str, arguments: Arguments) -> None:
        super().__init__(call_id, actor, method)
        self.arguments: Arguments | None = arguments
        self.packed: PackedCall | None = None
        self.complete = all(isinstance(one, ObjectHandle) for one in arguments.sources)
        self.has_paths = self.taken = self.left = False
        self.first = True
        self.mailbox: str | None = None
        self.cancel_asked: bool | None = None
        self.watch_arguments: ArgumentWatch | None = None

    @property
    def state(self) -> TaskState:
        if self.outcome is not None:
            return self.outcome.completion.state
        return TaskState.QUEUED if self.complete else TaskState.PENDING

    def pack(self) -> PackedCall:
        """Collect the payloads. Raises ResultLostError."""
        packed, arguments = self.packed, self.arguments
        if packed is None:
            if arguments is None:  # the service has them
                return PackedCall({}, {})
            name = digest_of(arguments.data)
            objects = [*names_of(arguments.sources), *(f"{ACTOR}{actor._item.id}" for actor in arguments.actors)]
            body = {"arguments": name, "objects": objects, "paths": self.has_paths}
            packed = self.packed = PackedCall({name: arguments.data, **bytes_of(arguments.sources)}, body)
        return packed

    def unpack(self) -> None:
        """Release the payloads, which are not needed here any more."""
        self.arguments = self.packed = None

    def document(self) -> dict[str, Any]:
        """Return the identifying fields; the payload fields are in its PackedCall."""
        body: dict[str, Any] = {"id": self.id, "actor": self.actor.item.id, "method": self.method}
        return body if self.first else {**body, "first": False, "mailbox": self.mailbox}

    def never_sent(self, ended: Outcome) -> Outcome:
        """The outcome of an unsent call whose actor has ended."""
        where, step = ended.completion.cluster, "make a new actor and call that"
        done = Complete(self.id, TaskState.FAILED, 0, where, "ActorDiedError", self.unsent_message(ended), step)
        return Outcome(done, ended.result)

    def failed(self, error: SchedulerError) -> Outcome:
        """The outcome of a call that the service refused."""
        return self.refused(type(error).__name__, error.message, error.next_step or "", cluster=error.cluster)

    def refused(
        self,
        error: str | None,
        message: str,
        next_step: str = "",
        *,
        cluster: str | None = None,
        origin: Outcome | None = None,
    ) -> Outcome:
        done = Complete(self.id, TaskState.FAILED, 0, cluster, error, message, next_step)
        return Outcome(done, None if origin is None else origin.result, origin)

    def cancelled(self, why: str) -> Outcome:
        message = f"{self.name} ({self.id}) was cancelled: {why}"
        return Outcome(Complete(self.id, TaskState.CANCELLED, 0, None, "TaskCancelledError", message), None)


class RemoteActorCalls:
    """The call queue of one actor. Calls are sent in order; a call waits while an earlier one waits for an argument and
    while the actor does not run. Calls queue here rather than in the service, which does not store them durably."""

    def __init__(self, item: Item, calls: RemoteCalls) -> None:
        self.item = item
        self.waiting: deque[RemoteCall] = deque()
        self.unanswered = 0
        self.killed = False
        self._calls = calls
        item.watch_transitions(self._on_transition)

    @property
    def serves(self) -> bool:
        """Is the actor known to be running, so that the service forwards calls?"""
        return self.item.outcome is None and self.item.state is TaskState.RUNNING

    def call(self, method: str, arguments: Arguments, *, has_paths: bool) -> RemoteCall:
        """As :meth:`CallQueue.call`."""
        calls = self._calls
        calls.check_own(arguments, self.item.id)
        call = RemoteCall(calls.new_id(), self, method, arguments)
        call.has_paths = has_paths
        if not call.complete:
            call.watch_arguments = ArgumentWatch(
                Arguments(b"", sources=arguments.sources),
                lambda _: self._on_arguments_ready(call),
                lambda failure: self._failed(call, failure),
            )
        calls.put(call)
        for actor in arguments.actors:
            if not actor._item.accepted:
                actor._item.watch_transitions(self._on_transition)
        if call.watch_arguments is not None:
            call.watch_arguments.begin()
        return call

    def no_more(self) -> None:
        self.killed = True

    def ready(self) -> list[RemoteCall]:
        """Dequeue the calls that can be sent now. Runs on the loop. The service must have accepted the actors among the
        arguments; calls fail here if their actor has ended."""
        ready: list[RemoteCall] = []
        ended = self.item.outcome
        while self.waiting:
            call = self.waiting[0]
            if call.outcome is None and ended is None and not self._can_send(call):
                break
            self.waiting.popleft()
            if call.outcome is None and ended is not None:
                self._calls.end(call, call.never_sent(ended))
            elif call.outcome is None:
                ready.append(call)
        return ready

    def _can_send(self, call: RemoteCall) -> bool:
        actors = () if call.arguments is None else call.arguments.actors
        return call.complete and self.serves and all(actor._item.accepted for actor in actors)

    def _on_transition(self, item: Item) -> None:
        if item is not self.item and item.accepted:
            item.unwatch_transitions(self._on_transition)
        if self.waiting:
            self._calls.wake(self)

    def _on_arguments_ready(self, call: RemoteCall) -> None:
        call.complete = True
        self._calls.wake(self)

    def _failed(self, call: RemoteCall, failure: ArgumentFailure) -> None:
        self._calls.end(call, call.refused(failure.error, failure.sentence, origin=failure.origin))
        self._calls.wake(self)
