"""ServiceRuntime: the control plane of a service. Its loop is also the loop of the HTTP face."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.exception import (
    SchedulerError,
    ServiceUnavailableError,
    StoreFullError,
    TaskSubmissionError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.common.object_argument import is_put
from ray_multicluster_scheduler.common.package_uri import local_paths_in, packages_in
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.common.redaction.patterns import masked_line
from ray_multicluster_scheduler.control_plane.config import FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentWatch
from ray_multicluster_scheduler.control_plane.runtime.idempotency import check_same
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.runtime import KEPT_FINISHED
from ray_multicluster_scheduler.control_plane.runtime.service.actor_names import ActorNames
from ray_multicluster_scheduler.control_plane.runtime.service.durability_wait import until_written
from ray_multicluster_scheduler.control_plane.runtime.service.named_locks import NamedLocks
from ray_multicluster_scheduler.control_plane.runtime.service.payload_ownership import PayloadOwnership
from ray_multicluster_scheduler.control_plane.runtime.service.service_calls import ServiceCalls
from ray_multicluster_scheduler.control_plane.runtime.service.service_queries import Check, ServiceKnown
from ray_multicluster_scheduler.control_plane.runtime.service.store_persistence import StorePersistence
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs, StoredArguments
from ray_multicluster_scheduler.control_plane.runtime.service.stored_history import StoredHistory
from ray_multicluster_scheduler.control_plane.runtime.service.stored_kept_values import StoredKeptValues
from ray_multicluster_scheduler.control_plane.runtime.service.tracing.trace_sender import trace_sender_for
from ray_multicluster_scheduler.control_plane.store import OperationRecord, Store
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.health.metrics_aggregator import MetricsAggregator, TimedMachine
from ray_multicluster_scheduler.scheduler.lifecycle.events import ArgumentsFailed, ArgumentsReady
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import ACTION
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_outcome import result_of
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import task_of

_log = get_logger(__name__)
_AT_ONCE = 100
_MOST_SUBJECT = 256


class Wanted(NamedTuple):
    """An item to be taken. ``objects`` name the values that stand among its arguments, in their order, and behind them
    the actors. ``get_if_exists``: a living actor of the same name will do. ``check`` is asked of everything of others
    that it would use, or be. ``user`` is whose payloads it may name; None: everybody's."""

    task: TaskDescription
    objects: Sequence[str] = ()
    get_if_exists: bool = False
    check: Check | None = None
    user: str | None = None


class ServiceRuntime(ServiceKnown):
    """What it has accepted is in the store. The coroutines here are for its own loop; the rest is as in Runtime."""

    def __init__(self, config: FleetConfig, store: Store, *, kept_finished: int = KEPT_FINISHED) -> None:
        self.store = store
        self._stored = StorePersistence(store)
        self.history = StoredHistory(store)
        self.payloads = PayloadOwnership(store)
        self.values = StoredArguments(self)
        self.names, self.repeating = ActorNames(self), NamedLocks()
        self.calls = ServiceCalls(self)
        self.metrics = MetricsAggregator()
        self.trace_sender = trace_sender_for(config.settings.tracing, store)
        self._new_machine = functools.partial(TimedMachine, durations=self.metrics.decision)
        self.failure: str | None = None
        self.when_failed: Callable[[], object] = lambda: None
        super().__init__(config, store.control_plane, kept_finished=kept_finished, persistence=self._stored)
        store.on_commit(self.metrics.commit.add)

    def settings_now(self) -> Settings:
        """Those that hold: with what was said of owners since."""
        return self.settings.model_copy(update={"owners": self.machine.limits()})

    # ---- going on where the process before stopped

    async def _build(self) -> None:
        await super()._build()
        log = self._stored.durable_log
        if self.trace_sender is not None:
            log.tell = self.trace_sender.listening_after(log.tell)
        restored = await asyncio.to_thread(log.restored, self.clock.now(), self.settings.submission_interval_s)
        agents = await asyncio.to_thread(self._stored.agents.agents)
        identity = await asyncio.to_thread(self._stored.agents.identity)
        waiting = []
        for row in restored.items:
            if row.state.terminal:
                continue
            item = Item(row.task)
            item.transition = row.history[-1]
            self._live[item.id] = item
            if row.task.idempotency_key is not None:
                self._keys[row.task.owner, row.task.idempotency_key] = item.id
            if row.task.content_key is not None and row.ending is None:
                self._contents[row.task.content_key] = item.id
            self.names.note(item)
            if row.ending is not None:  # its end was asked for: the name is free
                self.names.killed(item.id)
            if item.id in log.attached:
                waiting.append(row)
        watches: list[ArgumentWatch | SchedulerError | None] = []
        for row in waiting:  # before the brain hears of them: it may send what is ready at once
            self.values.keep_for(self._live[row.task.id], log.attached[row.task.id])
            try:
                arguments = await self.values.arguments(log.attached[row.task.id], {}, row.task.id)
                if not row.waits_for:  # where its actors are was found out before
                    arguments = replace(arguments, actors=())
                watches.append(self.incomplete.expect(row.task.id, arguments))
            except SchedulerError as error:  # it was forgotten meanwhile; what has begun does not need it any more
                self._stored.objects.lose(row.task.id, log.attached[row.task.id])
                watches.append(error)
        ended = await asyncio.to_thread(self._ended_meanwhile, restored.items)
        await asyncio.to_thread(self._take_up_output, restored.items, {result.task_id for _, result in ended})
        strangers = [one for one in agents if one.cluster not in self.machine.registry.names()]
        self.dispatcher.left_alone = {one.cluster for one in strangers}
        longer = [one.away_s + one.longer_s(self.settings.lease_s) for one in strangers]
        self.dispatcher.outlive_s += max(longer, default=0.0)
        self.manager.post(restored)
        self.manager.when_durable(self.event_publisher.changes.reset)
        crash_point("in start-up")
        for cluster, result in ended:
            self.collector.finished(cluster, result)
        for row, watch in zip(waiting, watches, strict=True):
            if isinstance(watch, SchedulerError):
                self.manager.post(ArgumentsFailed(row.task.id, str(watch), "ResultLostError"))
            elif watch is not None:
                watch.begin()
            elif row.waits_for:
                self.manager.post(ArgumentsReady(row.task.id, None, self.incomplete.bytes_beside(row.task.id)))
        log.attached.clear()
        await self.links.take_back([one for one in agents if one not in strangers], identity)

    def _ended_meanwhile(self, rows: Iterable[ItemRow]) -> list[tuple[str, CallResult]]:
        """Answers that were written, while the process before ours ended before it could say what follows from them."""
        found = []
        for row in rows:
            outcome = None if row.state.terminal or not row.attempt else self.store.outcome(row.task.id)
            if outcome is not None and outcome.attempt == row.attempt and row.place != "none":
                payload = None if outcome.digest is None else self.store.blob(outcome.digest)
                found.append((row.cluster or "", result_of(outcome, payload)))
        return found

    def _take_up_output(self, rows: Iterable[ItemRow], ended: Collection[str]) -> None:
        for row in rows:
            if not row.state.terminal and row.attempt and row.task.kind != "job":
                self._stored.printed.take_up(row.task.id, row.attempt, whole=row.task.id in ended)

    # ---- taking items

    async def take(self, wanted: Sequence[Wanted], blobs: Mapping[str, bytes]) -> list[Item | SchedulerError]:
        """Accept these, each by itself. What is returned is durable: each is an item, maybe one that was accepted long
        ago, or why it was refused."""
        self.check_that_it_goes_on()
        answers: list[Item | SchedulerError] = []
        known = self.store.known_ids([one.task.id for one in wanted])
        for at, one in enumerate(wanted):
            if at % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # others have their turn
            try:
                answers.append(await self._take_one(one, blobs, maybe_known=one.task.id in known))
            except SchedulerError as error:
                answers.append(error)
        unwritten = next((one for one in answers if isinstance(one, Item) and not one.accepted), None)
        if unwritten is not None:
            self.check_that_it_goes_on()
            await until_written(self.manager.when_durable, lambda: self._check_that_it_is_written(unwritten.id))
        return answers

    def check_that_it_goes_on(self) -> None:
        """Raises ServiceUnavailableError."""
        if self.failure is not None or self.refusal is not None:
            raise ServiceUnavailableError(
                f"The service {self.failure or self.refusal}.", next_step="ask again when it runs again"
            )

    def _check_that_it_is_written(self, item_id: str) -> None:
        self.check_that_it_goes_on()
        if self.store.write_problem is not None:
            raise ServiceUnavailableError(
                f"{item_id} cannot be written now, and is accepted when it can be. {self.store.write_problem}",
                task_id=item_id,
                next_step="submit it again, with the same id, or look whether it is there when there is room",
            )

    async def _take_one(self, wanted: Wanted, blobs: Mapping[str, bytes], *, maybe_known: bool) -> Item:
        task = wanted.task
        known = self.item(task.id)
        if known is None and (maybe_known or task.idempotency_key is not None):
            known = await self._find(task)
        if known is not None and wanted.check is not None:
            wanted.check(known.task.owner, task.id)
        if known is None and self.store.write_problem is not None:
            raise StoreFullError(
                f"Nothing can be accepted now. {self.store.write_problem}",
                task_id=task.id,
                next_step="submit it again when there is room",
            )
        if known is not None:
            check_same(task, await self._as_submitted(known))
            return known
        if task.actor is not None and task.actor.public_name is not None:
            async with self.names.lock(task.actor.public_name):
                taken = await self.names.claim(task, get_if_exists=wanted.get_if_exists, check=wanted.check)
                return taken if isinstance(taken, Item) else await self._take_new(wanted._replace(task=taken), blobs)
        return await self._take_new(wanted, blobs)

    async def _as_submitted(self, known: Item) -> TaskDescription:
        """With its secrets, which are sealed in the store."""
        if self.item(known.id) is not None:
            return known.task
        stored = await asyncio.to_thread(self.store.item, known.id)
        return known.task if stored is None else task_of(stored, self.store.cipher)[0]

    async def _take_new(self, wanted: Wanted, blobs: Mapping[str, bytes]) -> Item:
        task = wanted.task
        if task.runtime_env and (paths := local_paths_in(task.runtime_env)):  # on our disk there are others' secrets
            raise TaskSubmissionError(
                f"The runtime_env of {task.kind} {task.id} names {paths[0]!r}, and nothing is read from the disk of a "
                "service for a submission.",
                task_id=task.id,
                next_step="submit with the Python library, which packs it, or give a URI",
            )
        if not task.submitted_at:
            task = replace(task, submitted_at=self.clock.now())
        if "." in task.id or task.gang is not None:
            self.check_that_no_member_is_called_so(task)
        own = {name: blobs[name] for name in (*task.payloads, *wanted.objects) if name is not None and name in blobs}
        named = (*task.payloads, *filter(is_put, wanted.objects), *packages_in(task.runtime_env))
        missing = await self.payloads.missing(wanted.user, [one for one in named if one is not None and one not in own])
        if missing:
            raise MissingBlobs(missing, task.id)
        arguments = None
        if wanted.objects:
            arguments = await self.values.arguments(wanted.objects, own, task.id, wanted.check, wanted.user)
        # From here on nothing is awaited: what it runs after is what was looked at.
        task = self._without_what_is_over(task, wanted.check)
        again = self.item(task.id)
        if again is not None:  # somebody else brought it while we looked
            check_same(task, again.task)
            return again
        log = self._stored.durable_log
        log.accept(task, own, wanted.objects)
        self.payloads.note(wanted.user, own)
        for digest, data in own.items():
            self.payload_cache.hold(digest, data)
        item: Item | None = None
        try:
            item = self.submit(task, arguments)
        finally:
            if item is None or item.id != task.id:
                log.take_back(task.id)
        self.names.note(item)
        if item.id == task.id:
            self.values.keep_for(item, wanted.objects)
        return item

    def forget_ended(self, item_id: str) -> None:
        """The store has forgotten it: so do we."""
        if item_id in self._finished:
            self._finished.remove(item_id)
        if self.record(item_id) is not None:  # also of one that a restart brought back for others
            self._forget(item_id)

    async def durable(self) -> None:
        """Until all that was said so far is written. Raises ServiceUnavailableError if that cannot be told."""
        await until_written(self.manager.when_durable, self._check_that_orders_are_written)

    def _check_that_orders_are_written(self) -> None:
        if self.failure is not None:
            raise ServiceUnavailableError(f"The service {self.failure}.", next_step="say it again when it runs again")
        if self.store.write_problem is not None:
            raise ServiceUnavailableError(
                f"It was heard, and cannot be written now. {self.store.write_problem}",
                next_step="say it again when there is room",
            )

    def kill(self, item: Item, reason: str, *, force: bool) -> None:
        """Ask for the end of an item; calls of an actor that have not left yet wait for it and fail."""
        if item.task.serves:
            self.names.killed(item.id)
            self.calls.no_more(item.id)
        self.cancel(item.id, reason, force=force)

    async def _find(self, task: TaskDescription) -> Item | None:
        """One that was accepted before, by id or key, and is over."""
        by_key = task.id
        if task.idempotency_key is not None:
            live = self._keys.get((task.owner, task.idempotency_key))
            if live is not None and (item := self.item(live)) is not None:
                return item
            by_key = self.store.id_by_key(task.owner, task.idempotency_key) or task.id
        stored = self.store.item(by_key)
        if stored is not None:
            return await asyncio.to_thread(self.history.item, stored)
        if self.store.expired(by_key):
            raise TaskSubmissionError(
                f"{task.kind} {by_key} was accepted before, is over, and was forgotten: an id is used once.",
                task_id=by_key,
                next_step="use another id, or none",
            )
        return None

    def _without_what_is_over(self, task: TaskDescription, check: Check | None) -> TaskDescription:
        """The brain need not know of those before it that succeeded long ago. Raises TaskSubmissionError if one of them
        failed then, and as ``check`` does."""
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
                    next_step=f"mend {one} and submit both again",
                )
            gone.add(one)
        return replace(task, after=tuple(one for one in task.after if one not in gone)) if gone else task

    @functools.cached_property
    def kept_values(self) -> StoredKeptValues:
        return StoredKeptValues(self, self._stored.durable_log)

    def release_values_older_than(self, seconds: float) -> None:
        """From any thread: values that were left in their clusters so long ago are not kept there any more."""
        self.soon(self.kept_values.there.release_values_older_than, seconds)

    def audit(
        self, user: str, token: str | None, action: str, subject: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """Log an administrative action and publish it as an event, soon durable. ``details`` are visible to everybody
        who may see the fleet, so text that looks like a secret is masked. On the loop."""
        shown = {
            name: masked_line(value) if isinstance(value, str) else value
            for name, value in (details or {}).items()
            if value not in ("", None)
        }
        pairs = "".join(f" {name}={value!r}" for name, value in shown.items())
        subject = subject[:_MOST_SUBJECT]
        extra = {"action": action, "subject": subject, "user": user, "token": token, "details": shown}
        quoted = repr(action) if " " in action else action
        _log.info("action=%s subject=%r user=%r token=%s%s", quoted, subject, user, token or "none", pairs, extra=extra)
        document = json.dumps({"action": action, "token": token, "details": shown}).encode()
        self.event_publisher.note(OperationRecord(ACTION, subject, self.clock.now(), user, document))

    # ---- what is counted

    def transition(self, transition: Transition) -> None:
        item, queued_at = self._live.get(transition.task_id), None
        if transition.state is TaskState.DISPATCHING:
            record = self.record(transition.task_id)
            queued_at = None if record is None else record.queued_at
        self.metrics.moved(None if item is None else item.transition, transition, queued_at)
        super().transition(transition)

    # ---- the end

    def _defect(self, error: BaseException) -> None:
        """Nothing is driven any more. Nobody is told that his work failed: it is as it was written, and the next
        process goes on with it."""
        self.failure = f"cannot go on: {error}"
        self.refuse(self.failure)
        _log.error("the service %s; start it again, everything is in its folder", self.failure)
        self.when_failed()

    def acknowledge_no_more(self) -> None:
        """On the loop, before programs cannot ask any more: agents keep what they answer for the next process."""
        self._stored.acknowledge_no_more()

    def park(self, away_s: float = 0.0) -> list[str]:
        """Stop here, and leave everything running where it is: the next process goes on. With ``away_s`` it may come so
        much later than ``lease_s`` for the clusters that are returned. Idempotent."""
        with self._closing:
            if self.loop_over:
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
            self._stored.write_output()
        self.manager.halt()
        self.event_publisher.close()
        await self.questions.close()
        await self.connections.close()
        await self.dispatcher.close()
        await self.jobs.close()
        told = await self.links.park(away_s)
        await self.clients.close()
        await asyncio.to_thread(self.packages.close)
        return told
