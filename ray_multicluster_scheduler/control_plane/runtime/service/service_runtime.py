"""ServiceRuntime: the durable control plane of ``rmcs up``: accepts, finds, explains and cancels items for HTTP routes.

``admin_api.serve`` makes it. :meth:`ServiceRuntime.accept` answers for an item when it is in the store. At each start,
:meth:`ServiceRuntime._build` restores the state of the previous process from there.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.blob_names import local_paths_in, package_digests_in
from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    SchedulerError,
    ServiceUnavailableError,
    StoreFullError,
    TaskSubmissionError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.common.object_argument import is_put
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.common.redaction import mask_text
from ray_multicluster_scheduler.control_plane.config import FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentWatch
from ray_multicluster_scheduler.control_plane.runtime.explanation import CurrentWaitReasons
from ray_multicluster_scheduler.control_plane.runtime.idempotency import check_same_item
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.job_status import EXPIRED
from ray_multicluster_scheduler.control_plane.runtime.preemption_report import preemption_report
from ray_multicluster_scheduler.control_plane.runtime.runtime import KEPT_FINISHED, Runtime
from ray_multicluster_scheduler.control_plane.runtime.service.actor_names import ActorNames, NamedLocks
from ray_multicluster_scheduler.control_plane.runtime.service.service_calls import ServiceCalls
from ray_multicluster_scheduler.control_plane.runtime.service.store_persistence import (
    StoredKeptValues,
    StorePersistence,
)
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import (
    MissingBlobs,
    PayloadOwnership,
    StoredArguments,
)
from ray_multicluster_scheduler.control_plane.runtime.service.stored_history import StoredHistory
from ray_multicluster_scheduler.control_plane.runtime.service.tracing.trace_sender import trace_sender_for
from ray_multicluster_scheduler.control_plane.store import OperationRecord, Store, StoredItem
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.health.metrics_aggregator import MetricsAggregator, TimedMachine
from ray_multicluster_scheduler.scheduler.lifecycle.events import ArgumentsFailed, ArgumentsReady
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import ACTION
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_result, decode_task
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import DurableResultCollector

_log = get_logger(__name__)
_YIELD_EVERY = 100
"""Submissions of one batch that are handled before other work on the loop gets a turn."""
_MAX_SUBJECT = 256
_MAX_REPETITIONS = 20
_DURABILITY_CHECK_S = 1.0

OwnershipCheck = Callable[[str, str], object]
"""Called with the owner and the id of an item at the moment it is found; raises NotAllowedError or UnknownItemError if
the caller may not use it. None in place of one: the caller may use everything."""


class SubmitRequest(NamedTuple):
    """An item to accept. ``objects`` names the values among its arguments, in their order, then the actors.
    ``get_if_exists``: a living actor of the same name is an acceptable answer. ``check`` is applied to every existing
    item that the new one would use, or be. ``user``: the owner of the payloads it may name; None: all payloads."""

    task: TaskDescription
    objects: Sequence[str] = ()
    get_if_exists: bool = False
    check: OwnershipCheck | None = None
    user: str | None = None


class ResolvedId(NamedTuple):
    """A resolved id: the item ``id``, or with ``at`` member number ``at`` of the gang ``id``. ``stored`` is None
    if the item is in memory."""

    id: str
    owner: str
    at: int | None = None
    stored: StoredItem | None = None


class ServiceRuntime(Runtime):
    """A :class:`Runtime` whose state outlives its process. Coroutines here run on its own loop, which is also the loop
    of the HTTP server; the thread rules of everything else are those of Runtime."""

    _persistence: StorePersistence
    collector: DurableResultCollector

    def __init__(self, config: FleetConfig, store: Store, *, kept_finished: int = KEPT_FINISHED) -> None:
        self.store = store
        self._persistence = StorePersistence(store)
        self.history = StoredHistory(store)
        self.payload_ownership = PayloadOwnership(store)
        self.stored_arguments = StoredArguments(self)
        self.actor_names, self.retry_locks = ActorNames(self), NamedLocks()
        self.calls = ServiceCalls(self)
        self.metrics = MetricsAggregator()
        self.trace_sender = trace_sender_for(config.settings.tracing, store)
        self._new_machine = functools.partial(TimedMachine, durations=self.metrics.decision)
        self.failure: str | None = None
        self.when_failed: Callable[[], object] = lambda: None
        super().__init__(config, store.control_plane, kept_finished=kept_finished, persistence=self._persistence)
        store.on_commit(self.metrics.commit.add)

    def settings_now(self) -> Settings:
        """The settings in force, with the owner limits that were changed at run time."""
        return self.settings.model_copy(update={"owners": self.machine.limits()})

    # ---- restart: continue where the previous process stopped

    async def _build(self) -> None:
        await super()._build()
        log = self._persistence.durable_log
        if self.trace_sender is not None:
            log.publish = self.trace_sender.listening_after(log.publish)
        restored = await asyncio.to_thread(log.restored, self.clock.now(), self.settings.submission_interval_s)
        agents = await asyncio.to_thread(self._persistence.agents.agents)
        identity = await asyncio.to_thread(self._persistence.agents.identity)
        waiting = await self._restore_items(restored.items)
        results = await asyncio.to_thread(self._results_without_completion, restored.items)
        await asyncio.to_thread(self._resume_output, restored.items, {result.task_id for _, result in results})
        unconfigured = [one for one in agents if one.cluster not in self.machine.registry.names()]
        self.link_runner.abandoned_clusters = {one.cluster for one in unconfigured}
        extra = [one.away_s + one.lease_excess_s(self.settings.lease_s) for one in unconfigured]
        self.link_runner.orphan_timeout_s += max(extra, default=0.0)
        self.manager.post(restored)
        self.manager.when_durable(self.event_publisher.reset)
        crash_point("in start-up")
        for cluster, result in results:
            self.collector.finished(cluster, result)
        for row, watch in waiting:
            if isinstance(watch, SchedulerError):
                self.manager.post(ArgumentsFailed(row.task.id, str(watch), "ResultLostError"))
            elif watch is not None:
                watch.begin()
            elif row.waits_for:
                self.manager.post(ArgumentsReady(row.task.id, None, self.incomplete.attached_bytes(row.task.id)))
        log.attached.clear()
        await self.links.restore_agents([one for one in agents if one not in unconfigured], identity)

    async def _restore_items(
        self, rows: Iterable[ItemRow]
    ) -> list[tuple[ItemRow, ArgumentWatch | SchedulerError | None]]:
        """Create the unfinished items; returns those with attached arguments, each with the watch of its arguments or
        the error if they are lost. Call it before the machine has the rows, which it may dispatch at once."""
        attached = self._persistence.durable_log.attached
        unfinished = [row for row in rows if not row.state.terminal]
        for row in unfinished:
            item = Item(row.task)
            item.transition = row.history[-1]
            self.items.add(item, match_content=row.ending is None)
            self.actor_names.add(item)
            if row.ending is not None:  # a cancelled actor's name is free
                self.actor_names.killed(item.id)
        waiting = [row for row in unfinished if row.task.id in attached]
        return [(row, await self._restore_arguments(row, attached[row.task.id])) for row in waiting]

    async def _restore_arguments(self, row: ItemRow, names: Sequence[str]) -> ArgumentWatch | SchedulerError | None:
        task_id = row.task.id
        self.stored_arguments.keep_for(self.items.live[task_id], names)
        try:
            arguments = await self.stored_arguments.arguments(names, {}, task_id)
            if not row.waits_for:  # the clusters of its actors are already in the row
                arguments = replace(arguments, actors=())
            return self.incomplete.expect(task_id, arguments)
        except SchedulerError as error:  # a value was forgotten; an attempt that has begun does not need it
            self._persistence.objects.lose(task_id, names)
            return error

    def _results_without_completion(self, rows: Iterable[ItemRow]) -> list[tuple[str, CallResult]]:
        """By cluster, the results that were stored although the previous process ended before it handled them."""
        found = []
        for row in rows:
            outcome = None if row.state.terminal or not row.attempt else self.store.outcome(row.task.id)
            if outcome is not None and outcome.attempt == row.attempt and row.place != "none":
                payload = None if outcome.digest is None else self.store.blob(outcome.digest)
                found.append((row.cluster or "", decode_result(outcome, payload)))
        return found

    def _resume_output(self, rows: Iterable[ItemRow], ended: Collection[str]) -> None:
        for row in rows:
            if not row.state.terminal and row.attempt and row.task.kind != "job":
                self._persistence.printed.restore(row.task.id, row.attempt, complete=row.task.id in ended)

    # ---- accepting items

    async def accept(
        self, requests: Sequence[SubmitRequest], blobs: Mapping[str, bytes]
    ) -> list[Item | SchedulerError]:
        """Accept or refuse each by itself. Each answer is the durable item, which may have been accepted earlier, or
        the error. Raises ServiceUnavailableError."""
        self.check_running()
        answers: list[Item | SchedulerError] = []
        known = self.store.known_ids([one.task.id for one in requests])
        for at, one in enumerate(requests):
            if at % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
            try:
                answers.append(await self._accept_one(one, blobs, maybe_known=one.task.id in known))
            except SchedulerError as error:
                answers.append(error)
        unwritten = next((one for one in answers if isinstance(one, Item) and not one.accepted), None)
        if unwritten is not None:
            self.check_running()
            await self._until_durable(lambda: self._check_submission_writable(unwritten.id))
        return answers

    def check_running(self) -> None:
        """Raises ServiceUnavailableError if the service failed, drains or stops."""
        if self.failure is not None or self.refusal is not None:
            raise ServiceUnavailableError(
                f"The service {self.failure or self.refusal}.", next_step="retry when it runs again"
            )

    def _check_submission_writable(self, item_id: str) -> None:
        self.check_running()
        if self.store.write_problem is not None:
            raise ServiceUnavailableError(
                f"{item_id} cannot be written now, and is accepted when it can be. {self.store.write_problem}",
                task_id=item_id,
                next_step="submit it again with the same id, or check whether it exists once there is room",
            )

    async def _accept_one(self, request: SubmitRequest, blobs: Mapping[str, bytes], *, maybe_known: bool) -> Item:
        task = request.task
        known = self.item(task.id)
        if known is None and (maybe_known or task.idempotency_key is not None):
            known = await self._find_accepted(task)
        if known is not None:
            if request.check is not None:
                request.check(known.task.owner, task.id)
            check_same_item(task, await self._as_submitted(known))
            return known
        if self.store.write_problem is not None:
            raise StoreFullError(
                f"{task.id} was not accepted: the store cannot write now. {self.store.write_problem}",
                task_id=task.id,
                next_step="submit it again when there is room",
            )
        if task.actor is None or task.actor.public_name is None:
            return await self._accept_new(request, blobs)
        async with self.actor_names.lock(task.actor.public_name):
            claimed = await self.actor_names.claim(task, get_if_exists=request.get_if_exists, check=request.check)
            if isinstance(claimed, Item):
                return claimed
            return await self._accept_new(request._replace(task=claimed), blobs)

    async def _as_submitted(self, known: Item) -> TaskDescription:
        """The task with its secrets, which are encrypted in the store."""
        if self.item(known.id) is not None:
            return known.task
        stored = await asyncio.to_thread(self.store.item, known.id)
        return known.task if stored is None else decode_task(stored, self.store.cipher)[0]

    async def _accept_new(self, request: SubmitRequest, blobs: Mapping[str, bytes]) -> Item:
        task = request.task
        if task.runtime_env and (paths := local_paths_in(task.runtime_env)):  # the service's disk holds others' secrets
            raise TaskSubmissionError(
                f"The runtime_env of {task.kind} {task.id} names {paths[0]!r}, but a service does not read its own "
                "disk for a submission.",
                task_id=task.id,
                next_step="submit with the Python library, which packs it, or give a URI",
            )
        if not task.submitted_at:
            task = replace(task, submitted_at=self.clock.now())
        if "." in task.id or task.gang is not None:
            self.check_member_ids(task)
        own = {
            name: blobs[name]
            for name in (*task.payload_digests, *request.objects)
            if name is not None and name in blobs
        }
        named = (*task.payload_digests, *filter(is_put, request.objects), *package_digests_in(task.runtime_env))
        absent = [one for one in named if one is not None and one not in own]
        missing = await self.payload_ownership.missing(request.user, absent)
        if missing:
            raise MissingBlobs(missing, task.id)
        arguments = None
        if request.objects:
            arguments = await self.stored_arguments.arguments(
                request.objects, own, task.id, request.check, request.user
            )
        if self._may_be_full(task) and self.item(task.id) is None:
            await self._check_room(task, arguments)
        # No await from here on: the state of the items in ``after`` must not change between check and submit.
        task = self._without_finished_dependencies(task, request.check)
        again = self.item(task.id)
        if again is not None:  # a concurrent request has submitted it
            check_same_item(task, again.task)
            return again
        log = self._persistence.durable_log
        log.accept(task, own, request.objects)
        self.payload_ownership.note(request.user, own)
        for digest, data in own.items():
            self.payload_cache.hold(digest, data)
        item: Item | None = None
        try:
            item = self.submit(task, arguments)
        finally:
            if item is None or item.id != task.id:
                log.withdraw(task.id)
        self.actor_names.add(item)
        if item.id == task.id:
            self.stored_arguments.keep_for(item, request.objects)
        return item

    async def _find_accepted(self, task: TaskDescription) -> Item | None:
        """The item accepted earlier with this id or idempotency key. Raises TaskSubmissionError if it was forgotten."""
        by_key = task.id
        if task.idempotency_key is not None:
            item = self.items.by_key(task.owner, task.idempotency_key)
            if item is not None:
                return item
            by_key = self.store.id_by_key(task.owner, task.idempotency_key) or task.id
        stored = self.store.item(by_key)
        if stored is not None:
            return await asyncio.to_thread(self.history.item, stored)
        if self.store.expired(by_key):
            raise TaskSubmissionError(
                f"{task.kind} {by_key} was accepted before and has been deleted: an id cannot be used again.",
                task_id=by_key,
                next_step="use another id, or none",
            )
        return None

    def _without_finished_dependencies(self, task: TaskDescription, check: OwnershipCheck | None) -> TaskDescription:
        """The task without those ``after`` ids that only the store knows, and that succeeded. Raises
        TaskSubmissionError if one of those failed, and as ``check`` does."""
        if not task.after:
            return task
        gone = set()
        for one in task.after:
            known = self.item(one) if check is not None else None
            if known is not None and check is not None:
                check(known.task.owner, one)
            stored = None if self.record(one) is not None else self.store.item(one)
            if stored is not None and check is not None:
                check(stored.new.owner, one)
            if stored is None or not stored.status.state.terminal:
                continue
            if stored.status.state is not TaskState.SUCCEEDED:
                ended = "was cancelled" if stored.status.state is TaskState.CANCELLED else "failed"
                raise TaskSubmissionError(
                    f"{task.kind} {task.id} cannot run, because {one}, which it is to run after, {ended} long ago.",
                    task_id=task.id,
                    next_step=f"fix {one} and submit both again",
                )
            gone.add(one)
        return replace(task, after=tuple(one for one in task.after if one not in gone)) if gone else task

    def check_member_ids(self, task: TaskDescription) -> None:
        """Raises ConfigurationError if the id of the item, or of one of its members, is also that of another item or
        gang member: ids must be unambiguous."""
        for name, at in explanation.id_interpretations(task.id):
            known = None if at is None else self.item(name) or self.record(name)
            stored = None if at is None or known is not None else self.store.item(name)
            gang = known.task if known is not None else None if stored is None else decode_task(stored)[0]
            if gang is not None and explanation.is_member(gang, task.id):
                raise ConfigurationError(
                    f"{task.id} is the id of a member of the gang {name}.", task_id=task.id, next_step="use another id"
                )
        members = [member_id(task.id, at) for at in range(len(task.gang.members))] if task.gang else []
        taken = [one for one in members if self.item(one) is not None] or (members and [*self.store.known_ids(members)])
        if taken:
            raise ConfigurationError(
                f"A member of the gang {task.id} would have the id {min(taken)}, which is in use.",
                task_id=task.id,
                next_step="use another id",
            )

    # ---- durability

    async def until_durable(self) -> None:
        """Wait until everything posted so far is written. Raises ServiceUnavailableError if it cannot be written."""
        await self._until_durable(self._check_store_writable)

    def _check_store_writable(self) -> None:
        if self.failure is not None:
            raise ServiceUnavailableError(f"The service {self.failure}.", next_step="repeat it when it runs again")
        if self.store.write_problem is not None:
            raise ServiceUnavailableError(
                f"The request is in force, but cannot be written now. {self.store.write_problem}",
                next_step="repeat it when there is room",
            )

    async def _until_durable(self, check: Callable[[], object]) -> None:
        """Wait for the disk; ``check`` runs every second and raises ServiceUnavailableError to end the wait."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        self.manager.when_durable(finish)
        while not done.done():
            await asyncio.wait([done], timeout=_DURABILITY_CHECK_S)
            if not done.done():
                check()

    # ---- queries: items in memory and in the store

    async def resolve_id(self, item_id: str) -> ResolvedId | None:
        """Resolve an id to an item or gang member; an item of exactly this id comes first. The only place that
        interprets ids, so that a permission check and the use that follows it cannot disagree."""
        for name, at in explanation.id_interpretations(item_id):
            known = self.item(name) or self.record(name)
            stored = None if known is not None else await asyncio.to_thread(self.store.item, name)
            if known is None and stored is None:
                continue
            if at is not None:
                task = decode_task(stored)[0] if stored is not None else known.task if known is not None else None
                if task is None or not explanation.is_member(task, item_id):
                    continue
            if stored is not None:
                return ResolvedId(name, stored.new.owner, at, stored)
            return ResolvedId(name, known.task.owner if known is not None else "", at)
        return None

    async def find_item(self, item_id: str) -> Item | None:
        """An item in memory or in the store; None: EXPIRED. Raises UnknownItemError."""
        item = self.item(item_id)
        if item is not None:
            return item
        stored = await asyncio.to_thread(self.store.item, item_id)
        if stored is not None:
            return await asyncio.to_thread(self.history.item, stored)
        await self._check_expired(item_id)
        return None

    async def _check_expired(self, item_id: str) -> None:
        """Raises UnknownItemError unless it is the id of a forgotten item."""
        if not await asyncio.to_thread(self.store.expired, item_id):
            raise explanation.unknown_item(item_id)

    def live_owner(self, item_id: str) -> str | None:
        """The owner of an item in memory."""
        known = self.item(item_id) or self.record(item_id)
        return None if known is None else known.task.owner

    async def output_of(self, item: Item, attempt: int, stream: str | None = None) -> str:
        """What an attempt printed. Raises ResultLostError if that was forgotten."""
        text = self.output.text(item.id, attempt, stream)
        if text or not 0 < attempt <= item.attempt or (attempt == item.attempt and not item.done()):
            return text
        return await asyncio.to_thread(self._persistence.printed.read_text, item.id, attempt, stream)

    async def explanation_of(self, item_id: str, check: OwnershipCheck | None = None) -> dict[str, Any]:
        """Why an item is in its state, or how it ended. Raises UnknownItemError, and as ``check`` does."""
        found = await self.resolve_id(item_id)
        if found is None:
            await self._check_expired(item_id)
            return {"id": item_id, "state": EXPIRED, "code": EXPIRED, "sentence": explanation.FORGOTTEN}
        if check is not None:
            check(found.owner, item_id)
        repetitions = await self.repetitions(found.id)
        if found.stored is None:
            return {**explanation.item_explanation(self, item_id), **repetitions}
        if found.at is None:
            return {**await asyncio.to_thread(self.history.explanation, found.stored), **repetitions}
        return {**await asyncio.to_thread(self.history.member_explanation, found.stored, item_id), **repetitions}

    async def preemption_of(self, item_id: str, check: OwnershipCheck | None = None) -> dict[str, Any]:
        """Which items would give way to this one, or why none would. Raises UnknownItemError, and as ``check`` does."""
        found = await self.resolve_id(item_id)
        if found is None:
            await self._check_expired(item_id)
            return preemption_report(self, item_id, EXPIRED)
        if check is not None:
            check(found.owner, item_id)
        return preemption_report(self, found.id, EXPIRED if found.stored is None else str(found.stored.status.state))

    async def repetitions(self, item_id: str) -> dict[str, list[str]]:
        """``{"repeated_by": ids}`` of the newest retries of a finished item; empty if there are none."""
        item = self.item(item_id)
        if item is not None and not item.done():
            return {}
        found = await asyncio.to_thread(self.store.retries_of, item_id, _MAX_REPETITIONS)
        return {"repeated_by": found} if found else {}

    async def job(
        self, job_id: str, check: OwnershipCheck | None = None, reasons: CurrentWaitReasons | None = None
    ) -> dict[str, Any]:
        """A job in the form of Ray's job API. ``reasons`` are those shared by all rows of one answer. Raises
        UnknownItemError, and as ``check`` does."""
        found = await self.resolve_id(job_id)
        if found is None or found.at is not None:
            await self._check_expired(job_id)
            return {"job_id": job_id, "status": EXPIRED, "message": explanation.FORGOTTEN}
        if check is not None:
            check(found.owner, job_id)
        if found.stored is None:
            return explanation.job_row(self, job_id, reasons)
        return await asyncio.to_thread(self.history.job, found.stored, self.jobs.ray_id)

    # ---- changes to accepted items

    def kill(self, item: Item, reason: str, *, force: bool) -> None:
        """Cancel an item. Calls of an actor that were not sent yet fail."""
        if item.task.runs_actors:
            self.actor_names.killed(item.id)
            self.calls.no_more(item.id)
        self.cancel(item.id, reason, force=force)

    def forget_ended(self, item_id: str) -> None:
        """Drop a finished item from memory after the store has forgotten it."""
        if item_id in self._finished:
            self._finished.remove(item_id)
        if self.record(item_id) is not None:  # also one that a restart restored because others need it
            self._forget(item_id)

    @functools.cached_property
    def kept_values(self) -> StoredKeptValues:
        return StoredKeptValues(self, self._persistence.durable_log)

    def release_values_older_than(self, seconds: float) -> None:
        """From any thread: let clusters drop the values that were left there this long ago."""
        self.call_soon(self.kept_values.release_older_than, seconds)

    def audit(
        self, user: str, token: str | None, action: str, subject: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """On the loop: log an administrative action and publish it as an event, soon durable. All users who may see the
        fleet can read ``details``, so text that looks like a secret is masked."""
        shown = {
            name: mask_text(value) if isinstance(value, str) else value
            for name, value in (details or {}).items()
            if value not in ("", None)
        }
        pairs = "".join(f" {name}={value!r}" for name, value in shown.items())
        subject = subject[:_MAX_SUBJECT]
        extra = {"action": action, "subject": subject, "user": user, "token": token, "details": shown}
        quoted = repr(action) if " " in action else action
        _log.info("action=%s subject=%r user=%r token=%s%s", quoted, subject, user, token or "none", pairs, extra=extra)
        document = json.dumps({"action": action, "token": token, "details": shown}).encode()
        self.event_publisher.note(OperationRecord(ACTION, subject, self.clock.now(), user, document))

    def transition(self, transition: Transition) -> None:
        item, queued_at = self.items.live.get(transition.task_id), None
        if transition.state is TaskState.DISPATCHING:
            record = self.record(transition.task_id)
            queued_at = None if record is None else record.queued_at
        self.metrics.record(None if item is None else item.transition, transition, queued_at)
        super().transition(transition)

    # ---- the end

    def _defect(self, error: BaseException) -> None:
        """Stop scheduling after a defect. No item is reported as failed: the store is right, and the next process
        continues from it."""
        self.failure = f"cannot continue: {error}"
        self.refuse(self.failure)
        _log.error("the service %s; start it again: the state of all items is in its folder", self.failure)
        self.when_failed()

    def stop_acknowledging(self) -> None:
        """On the loop, before the server stops answering: agents keep further results for the next process."""
        self.collector.stop_acknowledging()

    def park(self, away_s: float = 0.0) -> list[str]:
        """Stop this process and leave all work running in the clusters for the next one. With ``away_s`` the next start
        may come that much later than ``lease_s``, in the clusters that are returned. Idempotent."""
        with self._closing:
            if self.loop_ended:
                return []
            self.closed = True
            self.refuse("is being stopped")
            try:
                return self.run(self._park(away_s))
            finally:
                self._end()
                if self.trace_sender is not None:
                    self.trace_sender.close()

    async def _park(self, away_s: float) -> list[str]:
        if self.failure is None:
            self._persistence.write_output()
        self.manager.halt()
        self.event_publisher.close()
        await self.questions.close()
        await self.connections.close()
        await self.dispatcher.close()
        extended = await self.links.park(away_s)
        await self.clients.close()
        await asyncio.to_thread(self.packages.close)
        return extended
