"""Runtime: a control plane embedded in a program; connects scheduler, dispatcher and links on one loop thread.

``UnifiedScheduler`` makes one for a program without a service; ``service_runtime.py`` has the durable subclass. Start
at :meth:`Runtime._build`, which wires the parts. :class:`Persistence` decides which state outlives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import platform
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import QueueFullError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription, TaskState
from ray_multicluster_scheduler.common.model.item_fields import KINDS
from ray_multicluster_scheduler.common.notices import SilentClusterNotices
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime import (
    explanation,
    fleet_control,
    job_logs,
    local_queries,
    shutdown_report,
)
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls, CallItem, MethodCalls
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments, IncompleteItems
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventIterator
from ray_multicluster_scheduler.control_plane.runtime.event_publisher import EventPublisher
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.idempotency import IdempotencyIndex
from ray_multicluster_scheduler.control_plane.runtime.input_checks import check_priority, check_submission
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.kept_values import KeptValueFetcher
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import CallbackThreads, LoopThread, shut_down_error
from ray_multicluster_scheduler.control_plane.runtime.outcome import (
    OnFetched,
    as_read,
    note_failed_call,
    note_failure,
    value_timeout,
)
from ray_multicluster_scheduler.control_plane.runtime.pools import pool_of, with_pool_use
from ray_multicluster_scheduler.control_plane.runtime.preemption_report import with_preemption
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecordStore, NoAgentRecords
from ray_multicluster_scheduler.scheduler.connection.agents.lingering_agents import LingeringAgents
from ray_multicluster_scheduler.scheduler.connection.connection_lifecycle import ConnectionLifecycleManager
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import value_lost
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from ray_multicluster_scheduler.scheduler.health.health_checker import HealthChecker
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, CancelRequested, Event, Submitted
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.task_lifecycle_manager import TaskLifecycleManager
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import TransitionLog
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.reasons import CLUSTER_SUSPECT
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import AttemptPreparation
from ray_multicluster_scheduler.scheduler.scheduler_core.dispatcher import AttemptRunner, BackgroundTasks, Dispatcher
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter
from ray_multicluster_scheduler.scheduler.scheduler_core.installed_policies import load_policies
from ray_multicluster_scheduler.scheduler.scheduler_core.job_runner import JobRunner
from ray_multicluster_scheduler.scheduler.scheduler_core.link_runner import LinkRunner
from ray_multicluster_scheduler.scheduler.scheduler_core.memory_event_log import MemoryEventLog
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector
from ray_multicluster_scheduler.scheduler.scheduler_core.secret_masker import SecretMasker

KEPT_FINISHED = 10_000
KEPT_EXPIRED = 100_000
ACCEPT_TIMEOUT_S = 30.0
FLUSH_CHECK_S = 0.5


class Persistence:
    """Factory for the parts of a control plane that store state; each method is called once.

    Here the state is in memory and ends with the program; ``StorePersistence`` keeps it in the store of a service.
    """

    life = 1
    """The number of processes that this control plane has had so far."""
    lasting = False
    """Whether any client can read finished items here."""

    def __init__(self, payload_cache: PayloadCache, output: OutputStore, memory: AgentRecordStore) -> None:
        self.payload_cache, self.output, self.memory = payload_cache, output, memory

    def blob(self, digest: str) -> bytes | None:
        """The bytes of a package that a program uploaded. Blocks: not on the loop."""
        return None

    def log(
        self,
        machine: SchedulerMachine,
        soon: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
    ) -> TransitionLog:
        """``soon`` schedules a call on the loop; ``fail`` is called when the log cannot store entries any more."""
        self._log = MemoryEventLog(machine)
        return self._log

    def event_publisher(self, runtime: Runtime) -> EventPublisher:
        """On the loop, after :meth:`log`."""
        publisher = EventPublisher(runtime, self._log, 0, self._log.events_after)
        self._log.has_subscribers = lambda: len(publisher.hub) > 0
        return publisher

    def collector(
        self, post: Callable[[Event], None], when_durable: Callable[[Callable[[], object]], object]
    ) -> ResultCollector:
        """``when_durable`` runs a callback once all events posted before are handled and their results stored."""
        return ResultCollector(post, self.output)


class Runtime(LoopThread, ControlPlane):
    """Starts its thread on construction; :meth:`close` ends it. Public methods are safe from any thread.

    It is used once: its items carry its own control-plane id, and finished items can be read after its end.
    """

    output: OutputStore
    _new_machine: Callable[..., SchedulerMachine] = SchedulerMachine

    def __init__(
        self,
        config: FleetConfig,
        control_plane: str,
        *,
        kept_finished: int = KEPT_FINISHED,
        persistence: Persistence | None = None,
    ) -> None:
        self.config, self.settings, self.control_plane = config, config.settings, control_plane
        self._persistence = persistence or Persistence(PayloadCache(), OutputStore(), NoAgentRecords())
        self.clock, self.output = SystemClock(), self._persistence.output
        self.payload_cache = self._persistence.payload_cache
        self._kept_finished, self.closed = kept_finished, False
        self._one_at_a_time = threading.Lock()  # of submissions near the limit of the queue
        self._lock = threading.Lock()  # guards the next two: the known items, and whether new ones are accepted
        self.items = IdempotencyIndex(self.record)
        self.refusal: str | None = None
        self._finished: deque[str] = deque()
        self._notices = SilentClusterNotices()
        self.expired: deque[str] = deque(maxlen=KEPT_EXPIRED)
        self._callbacks, self._closing = CallbackThreads(), threading.Lock()
        super().__init__()
        try:
            self.run(self._build())
        except BaseException:
            self._end()
            raise

    # From any thread; see ControlPlane for what undocumented methods mean -----------------------------------

    def submit(self, task: TaskDescription, arguments: Arguments | None = None) -> Item:
        """As :meth:`ControlPlane.submit`. The item is not queued before all its ``arguments`` have values.

        Raises SchedulerError after the end, ConfigurationError for an id or key of a different item, QueueFullError.
        """
        taken = False
        try:
            check_submission(self, task)
            item, taken = self._add(task, arguments, has_room=self.on_loop_thread)
            if item is None:
                with self._one_at_a_time:
                    self.run(self._check_room(task, arguments))
                    item, taken = self._add(task, arguments, has_room=True)
            assert item is not None
            return item
        finally:
            if not taken:
                self._release(task)

    def _add(self, task: TaskDescription, arguments: Arguments | None, *, has_room: bool) -> tuple[Item | None, bool]:
        """Add the item, unless it is known, and post it to the scheduler. Returns it, and whether it is new; None if it
        must be checked first whether it ``has_room``."""
        taken, watch = False, None
        with self._lock:
            if self.refusal is not None:
                raise shut_down_error(self.refusal)
            item = self.items.find(task)
            if item is None:
                if not has_room and self._may_be_full(task):
                    return None, False
                item = Item(task)
                self.items.add(item)
                if arguments is not None and not arguments.plain:
                    watch = self.incomplete.expect(task.id, arguments)
                waits_for = watch.waits_for if watch else ""
                self.manager.post(Submitted(task, waits_for, self.incomplete.attached_bytes(task.id)))
                taken = True
        if watch is not None:
            watch.begin()
        return item, taken

    def _may_be_full(self, task: TaskDescription) -> bool:
        """Whether :meth:`_check_room` has to decide if there is room for the item. Cheap, from any thread."""
        unhandled = self.manager.unhandled  # read first: a concurrently handled event is counted twice, not never
        return self.machine.may_be_full(task.owner, unhandled)

    async def _check_room(self, task: TaskDescription, arguments: Arguments | None) -> None:
        """Raises QueueFullError if ``max_queue`` items wait and the item could not start at once. Before it refuses, it
        handles what was posted, and asks clusters without a current snapshot. It returns without yielding to the loop,
        so an item that is posted right afterwards has its room."""
        blocked = bool(task.after) or task.start_after is not None or not (arguments is None or arguments.plain)
        asked: set[str] = set()
        while True:
            await self.manager.caught_up()
            full = self.machine.queue_full(task, self.clock.now(), blocked=blocked)
            if full is None:
                return
            unknown = self.machine.awaited_clusters(self.clock.now()) - asked
            if not unknown:
                raise QueueFullError(full[0], task_id=task.id, next_step=full[1])
            asked |= unknown
            await asyncio.gather(*map(self.health.check, sorted(unknown)))

    def _release(self, task: TaskDescription) -> None:
        for digest in task.payload_digests:
            self.payload_cache.release(digest)

    def throttle(self) -> None:
        """As :meth:`ControlPlane.throttle`. The caller must hold no lock that the loop may need."""
        if not self.on_loop_thread:
            self.manager.throttle()

    def item(self, task_id: str) -> Item | None:
        return self.items.get(task_id)

    def accepted_item(self, task_id: str) -> Item | None:
        item = self.item(task_id)
        begun = item is None or item.done() or item.attempt > 0
        if item is not None and not begun and item.wait_accepted(ACCEPT_TIMEOUT_S) and not self.on_loop_thread:
            self.call_and_wait(lambda: None)  # the turn that accepted it may also refuse it: let it end
        return item

    def record(self, task_id: str) -> TaskRecord | None:
        """The read-only record in the scheduler; None if it was forgotten or is unknown."""
        try:
            return self.machine.record(task_id)
        except KeyError:
            return None

    def unfinished(self) -> list[Item]:
        with self._lock:
            return list(self.items.live.values())

    def cancel(self, task_id: str, reason: str, *, force: bool) -> bool:
        """As :meth:`ControlPlane.cancel`. Raises SchedulerError after the end and in a forked child."""
        item = self.items.live.get(task_id)
        if item is None or item.task.content_key is None:
            self.post_user_event(CancelRequested(task_id, reason, force))
        else:
            with self._lock:  # post this before a later submission with the same content
                self.items.stop_matching_content(item.task)
                self.post_user_event(CancelRequested(task_id, reason, force))
        if item is None:
            return False
        item.cancelling = True
        return True

    def post_user_event(self, event: Event) -> None:
        """As :meth:`ControlPlane.post_user_event`. Raises SchedulerError after the end and in a forked child."""
        self.check_process()
        with self.gate:
            self.check_open()
            self.manager.post(event)
        self.event_publisher.on_scheduler_event(event)

    def when_done(self, item: Promise, work: Callable[[], object]) -> None:
        item.watch(lambda _: self._callbacks.run(work))

    # Queries --------------------------------------------------------------------------------------------

    def check_known(self, task_id: str) -> None:
        if self.accepted_item(task_id) is None:
            self.call_and_wait(lambda: explanation.find_record(self, task_id))

    def scheduled_item_id(self, task_id: str) -> str:
        if self.item(task_id) is not None:
            return task_id
        self.accepted_item(task_id.rpartition(".")[0])
        return self.call_and_wait(lambda: explanation.gang_of(self, task_id)) or task_id

    def is_call(self, item_id: str) -> bool:
        return self.method_calls.was_issued(item_id)

    def explain(self, task_id: str) -> dict[str, Any]:
        if self.is_call(task_id):
            call = self.method_calls.find(task_id)
            return explanation.answered_call(task_id) if call is None else self.explain_call(call)
        if self.accepted_item(task_id) is None:
            self.accepted_item(task_id.rpartition(".")[0])
        return as_read(self.call_and_wait(lambda: explanation.item_explanation(self, task_id)))

    def calls_of(self, actor: Item) -> ActorCalls:
        return ActorCalls(actor, self.method_calls)

    def cancel_call(self, call_id: str, *, force: bool) -> bool:
        """As :meth:`ControlPlane.cancel_call`. Raises SchedulerError in a forked child."""
        self.check_process()
        call = self.method_calls.find(call_id)
        if call is None:
            return False
        call.cancel_asked = True
        self.call_soon(lambda: self.method_calls.cancel(call, force=force))
        return True

    def explain_call(self, call: CallPromise) -> dict[str, Any]:
        assert isinstance(call, CallItem)
        return Explanation(self.call_and_wait(lambda: explanation.call_explanation(call)))

    @functools.cached_property
    def kept_values(self) -> KeptValueFetcher:
        return KeptValueFetcher(self)

    def kept_value(self, outcome: Outcome, timeout: float | None = None) -> bytes:
        if self.closed:
            done = outcome.completion
            raise value_lost(done.task_id, done.cluster, "the scheduler was shut down, and its agents with it")

        async def fetched() -> bytes:
            async with asyncio.timeout(timeout):
                return await self.kept_values.fetch(outcome)

        try:
            return self.run(fetched())
        except TimeoutError:
            raise value_timeout(outcome, timeout or 0.0) from None

    def fetch_kept_value(self, item: Promise, then: OnFetched) -> None:
        """A :data:`FetchValue`; calls ``then`` on the loop."""
        self.spawn(self.kept_values.fetch_value(item, then))

    def plan(self, task: TaskDescription) -> SchedulingDecision:
        check_priority(self, task)
        self.run(self.health.check_all())
        return self.call_and_wait(lambda: self.planned(task))

    def planned(self, task: TaskDescription) -> SchedulingDecision:
        """On the loop: where the item would be placed now. Raises ConfigurationError."""
        decision, pools = self.machine.plan(task, self.clock.now()), self.machine.pools
        decision = with_pool_use(self.machine, decision, pools.assigned(task).pool)
        return with_preemption(self.machine, decision, task, self.clock.now())

    def job_info(self, job_id: str) -> dict[str, Any]:
        self.accepted_item(job_id)
        return as_read(self.call_and_wait(lambda: explanation.job_row(self, job_id)))

    def job_rows(self) -> list[dict[str, Any]]:
        return [as_read(row) for row in self.call_and_wait(lambda: explanation.job_rows(self))]

    def actor_rows(self) -> list[dict[str, Any]]:
        return self.call_and_wait(lambda: explanation.actor_rows(self))

    def job_log(self, job_id: str) -> str:
        return job_logs.read_all(self, job_id)

    def follow_job_log(self, job_id: str) -> Iterator[str]:
        return job_logs.follow(self, job_id)

    def events(self, wanted: EventFilter, since: int | None) -> EventIterator:
        return EventIterator(self, self.call_and_wait(lambda: self.event_publisher.stream(wanted, since)))

    @property
    def homes(self) -> Sequence[str]:
        return self.preparation.homes

    def check_cluster(self, name: str) -> None:
        self.machine.registry.get(name)

    def limits_of(self, owner: str, *, refresh: bool = False) -> OwnerLimits:
        if refresh and not self.on_loop_thread:
            self.run(self._until_events_handled())
        return self.machine.limits_of(owner)

    async def _until_events_handled(self) -> None:
        """Wait until the scheduler has handled all events posted so far, or has stopped."""
        handled = asyncio.Event()
        self.manager.when_durable(handled.set)
        while not handled.is_set() and self.refusal is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_CHECK_S):
                    await handled.wait()

    def cluster_rows(self, refresh: Sequence[str] | None = ()) -> list[dict[str, Any]]:
        if refresh is None:
            self.run(self.health.check_all())
        for name in refresh or ():
            self.run(self.health.check(name))
        return self.call_and_wait(lambda: explanation.cluster_rows(self))

    def node_rows(self, clusters: Sequence[str]) -> list[dict[str, Any]]:
        return self.call_and_wait(lambda: explanation.node_rows(self, clusters))

    def is_drained(self, cluster: str) -> bool | None:
        return self.call_and_wait(lambda: self.machine.clusters.is_drained(cluster))

    def declare_dead(self, cluster: str, reason: str, *, force: bool) -> list[str]:
        return self.run(fleet_control.declare_dead(self, cluster, reason, force=force))

    # The end ------------------------------------------------------------------------------------------------

    def shutdown(self, *, drain: bool, interrupted: Callable[[], bool] = lambda: False) -> None:
        if drain:
            shutdown_report.drain(self)
        self.refuse()
        shutdown_report.cancel_all(self, interrupted=interrupted())
        self.close()

    def refuse(self, why: str = "was shut down") -> None:
        """Accept no new items from now on."""
        with self._lock:
            self.refusal = self.refusal or why

    def close(self) -> None:
        """End agents, connections and the thread, and complete unfinished items. Idempotent."""
        with self._closing:
            if self.loop_ended:
                return
            self.closed = True
            self.refuse()
            self.cancel_waiters()
            try:
                self.run(self._close())
            finally:
                self._end()

    def _end(self) -> None:
        self.end_loop()
        self._callbacks.close()

    # On the loop ----------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        """Pass an event to the machine. Events of the collector are already masked; see :meth:`_mask_and_post`."""
        if isinstance(event, AttemptFinished) and event.code == "PACKAGE_MISSING":  # to be packed again
            self.packages.report_missing(event.sentence)
        self.manager.post(event)
        self.event_publisher.on_scheduler_event(event)

    def _mask_and_post(self, event: Event) -> None:
        """Post an event of the dispatcher or a job runner, which may contain secrets of an item."""
        self._post(self.secret_masker.event(event))

    async def _build(self) -> None:
        """The one place where the parts of an embedded control plane are put together."""
        settings, clusters = self.config.settings, {one.name: one for one in self.config.clusters}
        self.machine = self._new_machine(
            settings,
            [cluster.metadata() for cluster in self.config.clusters],
            policy=PolicyEngine(settings, local_python=platform.python_version(), catalog=load_policies(settings)),
            pools=[pool_of(one) for one in self.config.pools],
        )
        log = self._persistence.log(
            self.machine,
            lambda call: self.call_soon(self.manager.run_guarded, call),
            lambda error: self.manager.fail(error),  # noqa: PLW0108 - it is made below
        )
        self.manager = TaskLifecycleManager(self.machine, log, self.clock, self)
        self.packages = PackageCache(stored=self._persistence.blob)
        self.incomplete = IncompleteItems(self.payload_cache, self._post, self.call_soon, self.fetch_kept_value)
        self.collector = self._persistence.collector(self._post, self.manager.when_durable)
        self.secret_masker = self.collector.secret_masker = SecretMasker(self.record)
        self.clients = JobClientPool(clusters)
        lingers = settings.agent_linger_s > 0 and not self._persistence.lasting
        lingering = LingeringAgents(settings.agent_linger_s) if lingers else None
        self.links = RayClientPool(
            clusters,
            settings,
            self.clients,
            self.collector,
            self.clock,
            self.control_plane,
            self.packages,
            self._persistence.memory,
            self._persistence.life,
            lingering,
        )
        self.preparation = AttemptPreparation(self.links.packages, self.packages, str(Path.home()))
        self.preparation.update(clusters)
        monitor = ClusterMonitor(self.links, self.clients, self.clock, self._post)
        self.health = HealthChecker(monitor, lambda: self.config.names)  # read at each check: clusters change
        ready = self.preparation
        describe, post, background = self._describe, self._mask_and_post, BackgroundTasks()
        self.jobs = JobRunner(describe, post, self.clients, ready, self.clock, self.control_plane, background)
        python, lost_after_s = platform.python_version(), settings.lost_after_s
        self.link_runner = LinkRunner(
            describe, post, self.payload_cache, self.links, ready, python, lost_after_s, background
        )
        runners: dict[str, AttemptRunner] = {**dict.fromkeys(KINDS, self.link_runner), "job": self.jobs}
        self.dispatcher = Dispatcher(describe, runners, monitor, background)
        self.method_calls = MethodCalls(
            self.control_plane,
            self.links.existing_link,
            ready.homes,
            ready.home_of,
            self._defect,
            self._persistence.life,
            self.fetch_kept_value,
            None if self._persistence.lasting else note_failed_call,
        )
        self.collector.route_methods(self.method_calls.answered)
        self.connections = ConnectionLifecycleManager(self.links, settings.agent_idle_s)
        self.manager.connect_executor(self.dispatcher, self._defect)
        self.event_publisher = self._persistence.event_publisher(self)
        self.questions = local_queries.LocalQueryServer(functools.partial(local_queries.answer, self))
        await self.questions.open()

    async def _close(self) -> None:
        self.manager.stop_timers()
        self.event_publisher.close()
        self._leave_detached()
        await self.questions.close()
        try:
            await self.connections.close()
            await self.dispatcher.close()
            await self.links.close()
            await self.clients.close()
            await asyncio.to_thread(self.packages.close)
            await asyncio.sleep(0)  # let the last results of the links reach the machine
        finally:
            self._end_abandoned("TaskCancelledError", "the scheduler was shut down before it was over")

    def _describe(self, task_id: str) -> TaskDescription:
        return self.machine.record(task_id).task

    # Callbacks of the lifecycle manager --------------------------------------------------------------------

    def transition(self, transition: Transition) -> None:
        item = self.items.live.get(transition.task_id)
        if item is not None:
            before = item.attempt
            item.moved(transition)
            cluster = transition.cluster if transition.code == CLUSTER_SUSPECT else None  # None also if it is queued
            if cluster is not None and not self._persistence.lasting:  # a service's clients print it
                self._notices.add(cluster, transition.at, transition.sentence, item.id)
            if item.attempt != before:
                self.output.wake()

    def completed(self, completion: Complete) -> None:
        item = self.items.live.get(completion.task_id)
        if item is None:
            return
        self._complete(item, completion)
        self._finished.append(item.id)
        while len(self._finished) > self._kept_finished:
            self._forget(self._finished.popleft())

    def _complete(self, item: Item, completion: Complete) -> None:
        """Release its payloads, and set its outcome, which stays with its handles."""
        result = self.collector.result(item.id)
        self.collector.forget(item.id)
        self.output.close(item.id, completion.attempt)
        with self._lock:
            by_id_or_key = item.task.kind == "job" or item.task.idempotency_key is not None  # needs no handle
            self.items.finish(item, retain=by_id_or_key and not self._persistence.lasting)
        origin = self.incomplete.over(item.id)
        if origin is not None and completion.state is TaskState.FAILED:
            outcome = Outcome(completion, origin.result, origin)
        else:
            outcome = self.kept_values.on_ended(item, Outcome(completion, result))
        if not self._persistence.lasting:  # in a service, the clients report it
            note_failure(item, outcome)
        item.ended(outcome)
        self.output.wake()
        self._release(item.task)

    def _forget(self, task_id: str) -> None:
        """Forget a finished item, here and in the scheduler, which frees its id and key."""
        task = self._describe(task_id)
        with self._lock:
            self.machine.forget(task_id)
            self.items.forget(task)
        self.manager.log.forget(task_id)
        self.preparation.prepared.pop(task_id, None)
        self.collector.forget(task_id)
        self.output.forget(task_id)
        self.expired.append(task_id)

    def _defect(self, error: BaseException) -> None:
        self.refuse(f"has a defect and stopped: {error!r}")
        self._end_abandoned("SchedulerError", f"the scheduler has a defect and stopped: {error!r}")

    def _leave_detached(self) -> None:
        """Complete running detached actors, which continue without this process."""
        for item in self.unfinished():
            actor = item.task.actor
            if actor is not None and actor.detached and (actor.adopt or item.state is TaskState.RUNNING):
                message = (
                    f"actor {item.id} is detached and continues on {item.cluster} after the shutdown of its scheduler; "
                    f"get_actor({actor.public_name!r}) finds it again"
                )
                self._abandon(item, TaskState.CANCELLED, "TaskCancelledError", message)

    def _end_abandoned(self, kind: str, why: str) -> None:
        """Complete unfinished items without the scheduler, which has stopped."""
        state = TaskState.CANCELLED if kind == "TaskCancelledError" else TaskState.FAILED
        self.method_calls.end(self.refusal or "was shut down", kind, why)
        for item in self.unfinished():
            self._abandon(item, state, kind, f"{item.id} did not end by itself: {why}.")

    def _abandon(self, item: Item, state: TaskState, kind: str, message: str) -> None:
        self._complete(item, Complete(item.id, state, item.attempt, item.cluster, kind, message))
