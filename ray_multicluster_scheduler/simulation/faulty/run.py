"""One faulty run: play a scenario against a scheduler machine, and return the history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.lifecycle import codes, events
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FaultyCluster
from ray_multicluster_scheduler.simulation.faulty.faulty_executor import FaultyExecutor
from ray_multicluster_scheduler.simulation.faulty.faulty_link import FaultyLink
from ray_multicluster_scheduler.simulation.faulty.machine_driver import MachineDriver
from ray_multicluster_scheduler.simulation.faulty.scenario import BEGIN, OWNERS, Scenario
from ray_multicluster_scheduler.simulation.faulty.state_dump import dump_state, rebuild_differences
from ray_multicluster_scheduler.simulation.history import (
    AttemptEnded,
    ControlPlaneCrashed,
    ControlPlaneRestarted,
    History,
    Parts,
    RunSetup,
)

SETTLE_S = 4000.0
"""All items must have ended this long after the last fault."""

MakeMachine = Callable[..., SchedulerMachine]
"""Called with settings and clusters, and with ``pools`` if the scenario has some."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run. ``error`` is what the machine raised, if it did; the history then ends there."""

    history: History
    steps: int
    faults: int
    error: BaseException | None = None


class FaultyRun:
    """Plays the actions of a scenario: each names a public method below. All faults heal after the last action."""

    def __init__(
        self,
        scenario: Scenario,
        make: MakeMachine = SchedulerMachine,
        executor: type[FaultyExecutor] = FaultyExecutor,
    ) -> None:
        self.scenario, self._make = scenario, make
        self.settings = Settings(**scenario.settings)
        timer_rng = Random(f"{scenario.seed} timers")  # nosec B311 # reproducible on purpose
        machine = self._new_machine(scenario.clusters)
        self.driver = MachineDriver(machine, BEGIN, timer_rng, scenario.fault_rate)
        self.executor = executor(self.driver, scenario.seed, scenario.items.__getitem__, self._plan)
        self.driver.on_crash = self._crash_and_restart
        self._incomplete: set[str] = set()
        self._limited: set[str] = set()
        self.driver.record(RunSetup(BEGIN, dict(scenario.settings), scenario.clusters, scenario.pools))
        for metadata in scenario.clusters:
            cluster = FaultyCluster(metadata.name, scenario.nodes[metadata.name], self.executor)
            link = FaultyLink(
                cluster,
                self.executor,
                heartbeat_s=self.settings.heartbeat_s,
                lease_s=self.settings.lease_s,
                lost_s=self.settings.lost_after_s,
            )
            self.executor.add(cluster, link)
            cluster.boot()

    def play(self) -> Outcome:
        """Play all actions, then :meth:`settle`."""
        error: BaseException | None = None
        try:
            for action in self.scenario.actions:
                self.driver.run_until(action.at)
                self.driver.now = max(self.driver.now, action.at)
                if action.is_fault:
                    self.driver.record_fault(f"{action.method} {' '.join(map(str, action.arguments))}")
                getattr(self, action.method)(*action.arguments)
            self.settle()
        except Exception as problem:  # noqa: BLE001 - a defect of the machine; the history up to here shows it
            error = problem
        return Outcome(self.driver.history, self.driver.steps, self.driver.faults, error)

    def _plan(self, task_id: str, cluster: str) -> Parts:
        """The machine's own reservation for an item."""
        state = self.driver.machine.registry.find(cluster)
        reservation = None if state is None else state.ledger.reservations.get(task_id)
        return {} if reservation is None else {node: dict(part) for node, part in reservation.parts.items()}

    def end_faults(self) -> None:
        """Heal all faults; no further ones happen."""
        self.driver.fault_rate = 0.0
        for owner in OWNERS:
            self.driver.feed(events.QueueResumed("owner", owner))
        for owner in sorted(self._limited):
            self._remove_limit(owner)
        for pool in self.scenario.pools:
            self.driver.feed(events.PoolChanged(pool))
        for metadata in self.scenario.clusters:
            self._heal(metadata)
        for task_id in sorted(self._incomplete):
            self.resolve_arguments(task_id, succeed=True)
        for task_id in self.scenario.items:
            self.driver.feed(events.ReleaseRequested(task_id))

    def settle(self) -> None:
        """End all faults, run until all items must have ended, and dump the state."""
        self.driver.run_until(self.driver.now + 1.0)
        self.end_faults()
        self.driver.run_until(self.driver.now + SETTLE_S)
        self.dump_state()

    def _heal(self, metadata: ClusterMetadata) -> None:
        cluster, link = self.executor.clusters[metadata.name], self.executor.links[metadata.name]
        self.executor.refusing.discard(metadata.name)
        self.driver.feed(events.ClusterChanged(metadata.name, metadata, cordoned=False))
        self.driver.feed(events.QueueResumed("cluster", metadata.name))
        link.may_link, link.dashboard_ok = True, True
        if not cluster.alive:
            self._restart_cluster(metadata.name)
        self._restore_head(metadata.name, cluster.session)
        self._restore_link(link)
        for node, total in cluster.configured_nodes.items():
            cluster.add_node(cluster.node_id(node), total)
        cluster.other_usage = {}
        link.deliver_buffered()
        link.schedule_snapshot()

    # ---- actions of owners and operators

    def submit(self, task_id: str, waits_for: str) -> None:
        self.driver.feed(events.Submitted(self.scenario.items[task_id], waits_for))
        if waits_for:
            self._incomplete.add(task_id)

    def resolve_arguments(self, task_id: str, succeed: bool) -> None:
        self._incomplete.discard(task_id)
        failed = events.ArgumentsFailed(task_id, "its argument failed", "TaskCancelledError")
        self.driver.feed(events.ArgumentsReady(task_id) if succeed else failed)

    def cancel(self, task_id: str, force: bool) -> None:
        self.driver.feed(events.CancelRequested(task_id, "its owner cancelled it", force))

    def hold(self, task_id: str, seconds: float) -> None:
        self.driver.feed(events.HoldRequested(task_id, "not yet"))
        self.driver.after(seconds, self.driver.feed, events.ReleaseRequested(task_id))

    def set_priority(self, task_id: str, priority: float) -> None:
        self.driver.feed(events.PriorityChanged(task_id, priority))

    def pause(self, what: Literal["cluster", "owner"], name: str, seconds: float) -> None:
        self.driver.feed(events.QueuePaused(what, name, "for now"))
        self.driver.after(seconds, self.driver.feed, events.QueueResumed(what, name))

    def limit(self, owner: str, weight: float, running: int | None, queued: int | None, seconds: float) -> None:
        self._limited.add(owner)
        limits = OwnerLimits(weight=weight, max_running=running, max_queued=queued)
        self.driver.feed(events.OwnerLimitsChanged(owner, limits))
        self.driver.after(seconds, self._remove_limit, owner)

    def _remove_limit(self, owner: str) -> None:
        self._limited.discard(owner)
        self.driver.feed(events.OwnerLimitsChanged(owner, None))

    def resize(self, pool: str, share: float, seconds: float) -> None:
        """Change the quota of a pool for a while."""
        whole = next(one for one in self.scenario.pools if one.name == pool)
        quota = {name: amount * share for name, amount in whole.quota.items()}
        places = {
            place: {name: amount * share for name, amount in part.items()} for place, part in whole.place_quota.items()
        }
        self.driver.feed(events.PoolChanged(replace(whole, quota=quota, place_quota=places)))
        self.driver.after(seconds, self.driver.feed, events.PoolChanged(whole))

    def delete_pool(self, pool: str, seconds: float) -> None:
        """Delete a pool, which drains if it is used, and create it again."""
        self.driver.feed(events.PoolDeleted(pool))
        whole = next(one for one in self.scenario.pools if one.name == pool)
        self.driver.after(seconds, self.driver.feed, events.PoolChanged(whole))

    def cordon(self, name: str, seconds: float) -> None:
        metadata = self._metadata(name)
        self.driver.feed(events.ClusterChanged(name, metadata, cordoned=True))
        self.driver.after(seconds, self.driver.feed, events.ClusterChanged(name, metadata, cordoned=False))

    def remove(self, name: str, seconds: float) -> None:
        self.driver.feed(events.ClusterChanged(name, None))
        self.driver.after(seconds, self._register, name)

    def _register(self, name: str) -> None:
        self.driver.feed(events.ClusterChanged(name, self._metadata(name)))
        if self.executor.links[name].state == "up":
            self.executor.links[name].schedule_snapshot()

    def _metadata(self, name: str) -> ClusterMetadata:
        return next(one for one in self.scenario.clusters if one.name == name)

    def dump_state(self, compare_rebuilt: bool = True) -> None:
        """Record a state dump, and by default how a machine rebuilt from the rows would differ."""
        driver = self.driver
        if not driver.has_overdue_work:
            unequal: tuple[str, ...] = ()
            if compare_rebuilt:
                unequal = rebuild_differences(driver.machine, driver.rows, self._new_machine, driver.now)
            driver.record(dump_state(driver.machine, driver.now, unequal))

    def _new_machine(self, clusters: tuple[ClusterMetadata, ...] | None = None) -> SchedulerMachine:
        known = self.driver.machine.registry.list() if clusters is None else clusters
        pools = {"pools": self.scenario.pools} if self.scenario.pools else {}
        return self._make(self.settings, known, **pools)

    # ---- faults

    def cut_link(self, name: str, seconds: float) -> None:
        link = self.executor.links[name]
        if link.connected:
            link.cut()
            self.driver.after(seconds, self._restore_link, link)

    def _restore_link(self, link: FaultyLink) -> None:
        if not link.connected:
            link.restore()

    def kill_cluster(self, name: str, seconds: float) -> None:
        """The head dies. Worker nodes may run on for a while, but cannot report."""
        cluster, link = self.executor.clusters[name], self.executor.links[name]
        if not cluster.alive:
            return
        head = next(iter(cluster.nodes))
        rng = self.executor.random_stream(f"death of {name} {self.driver.now}")
        link.agent = None
        for attempt in cluster.halt():
            runs_on = not attempt.is_job and attempt.parts and head not in attempt.parts and rng.random() < 0.5
            longest = min(self.settings.node_grace_s, self.settings.lease_s) - 0.5
            if runs_on:
                self.driver.after(rng.uniform(0.1, longest), self._end_with_cluster, attempt, cluster)
            else:
                self._end_with_cluster(attempt, cluster)
        link.drop_buffered_calls()
        link.lose_contact()
        self.driver.after(seconds, self._restart_cluster, name)
        if rng.random() < 0.5:
            self.driver.after(self.settings.lease_s, self._declare_dead, name, cluster.session)
        if rng.random() < 0.5:
            self.driver.after(rng.uniform(0.1, 3.0), link.check_processes, link.contact_epoch)

    def _declare_dead(self, name: str, session: int) -> None:
        """An operator declares the cluster dead, if it still is."""
        cluster = self.executor.clusters[name]
        if not cluster.alive and cluster.session == session:
            self.driver.feed(events.ClusterDeclaredDead(name, "it burnt"))

    def _end_with_cluster(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        attempt.ended = True
        if cluster.running.pop(attempt.key, None) is not None:
            self.driver.record(AttemptEnded(self.driver.now, cluster.name, *attempt.key, "died"))

    def _restart_cluster(self, name: str) -> None:
        """The cluster comes back as a new session without the state of the one before."""
        cluster, link = self.executor.clusters[name], self.executor.links[name]
        if cluster.alive:
            return
        cluster.boot()
        lost = [one for one in self.executor.unanswered_on(name, jobs=True) if one.arrived]
        if link.connected:
            link.restore()
        self.driver.after(1.0, self._fail_lost_jobs, lost, link)

    def _fail_lost_jobs(self, lost: list[Attempt], link: FaultyLink) -> None:
        """The dashboard of the new session does not know these jobs."""
        if link.reachable and link.dashboard_answers:
            self.executor.fail_lost(lost, "the cluster restarted", codes.CLUSTER_RESTARTED)
        else:
            self.driver.after(1.0, self._fail_lost_jobs, lost, link)

    def lose_node(self, name: str, node: str, seconds: float) -> None:
        cluster = self.executor.clusters[name]
        if cluster.session == 1 and node in cluster.nodes:
            cluster.drop_node(node)
            self.executor.links[name].schedule_snapshot()
            self.driver.after(seconds, self._restore_node, name, node, cluster.session)

    def _restore_node(self, name: str, node: str, session: int) -> None:
        cluster = self.executor.clusters[name]
        if cluster.session == session:
            cluster.add_node(node, cluster.configured_nodes[node])
            self.executor.links[name].schedule_snapshot()

    def load_node(self, name: str, share: float, seconds: float) -> None:
        """Another user takes this share of a node."""
        cluster = self.executor.clusters[name]
        if cluster.alive:
            cluster.other_usage[next(iter(cluster.nodes))] = share
            self.executor.links[name].schedule_snapshot()
            self.driver.after(seconds, self._unload_nodes, name)

    def _unload_nodes(self, name: str) -> None:
        cluster = self.executor.clusters[name]
        cluster.other_usage = {}
        cluster.start_queued()
        self.executor.links[name].schedule_snapshot()

    def silence_dashboard(self, name: str, seconds: float) -> None:
        """The dashboard does not answer; the agent does."""
        self.executor.links[name].dashboard_ok = False
        self.driver.after(seconds, self._restore_dashboard, name)

    def _restore_dashboard(self, name: str) -> None:
        self.executor.links[name].dashboard_ok = True
        self.executor.links[name].deliver_buffered()

    def silence_head(self, name: str, seconds: float) -> None:
        """The head stops: Ray starts nothing and the dashboard does not answer, but agent and workers go on."""
        cluster = self.executor.clusters[name]
        if cluster.alive and cluster.head_silent_since is None:
            cluster.head_silent_since = self.driver.now
            self.executor.links[name].watch_head(self.driver.now)
            self.driver.after(seconds, self._restore_head, name, cluster.session)

    def _restore_head(self, name: str, session: int) -> None:
        cluster, link = self.executor.clusters[name], self.executor.links[name]
        if cluster.session == session and cluster.head_silent_since is not None:
            cluster.head_silent_since = None
            cluster.start_queued()
            link.schedule_snapshot()
            link.deliver_buffered()

    def block_agents(self, name: str, seconds: float) -> None:
        """No agent can be started."""
        self.executor.links[name].may_link = False
        self.driver.after(seconds, setattr, self.executor.links[name], "may_link", True)

    def refuse_dispatches(self, name: str, seconds: float) -> None:
        self.executor.refusing.add(name)
        self.driver.after(seconds, self.executor.refusing.discard, name)

    def crash(self, mid_answer: bool) -> None:
        """The control plane crashes, now or in the middle of its next answer, and restarts from what it persisted."""
        if mid_answer:
            self.driver.crash_on_next_event = True
        else:
            self._crash_and_restart()

    def _crash_and_restart(self) -> None:
        self.driver.record(ControlPlaneCrashed(self.driver.now))
        machine = self._new_machine()
        self.driver.record(ControlPlaneRestarted(self.driver.now))
        self.driver.restart(machine)
        for metadata in machine.registry.list():
            self.executor.links[metadata.name].reconnect()
