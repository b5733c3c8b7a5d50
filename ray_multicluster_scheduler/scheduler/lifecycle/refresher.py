"""SnapshotRefresher: requests snapshots and dashboard checks of clusters, only while they are needed."""

from __future__ import annotations

from collections.abc import Iterable

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CheckDashboard, RefreshSnapshot
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState

REPORT_INTERVAL_S, _REPORT_DELAY_S = 5.0, 0.5
"""How often Ray renews the report that its dashboard returns, and how much later than that it is read."""


class SnapshotRefresher:
    """At most one request per cluster at a time.

    A cluster is polled while anything waits or something of ours runs there. Where a link pushes every change, only the
    dashboard is checked periodically. An idle fleet gets no requests; a submission triggers one.
    """

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine
        self._waiting = False
        self._polled = set(machine.registry.names())

    def run(self, now: float, *, submitted: bool) -> None:
        """Runs once at the end of each call, for the clusters that it concerned."""
        waiting = len(self._machine.queue) > 0
        names: Iterable[str] = sorted(self._machine.clusters_to_refresh)
        if waiting != self._waiting:
            names, self._waiting = self._machine.registry.names(), waiting
        elif submitted and not waiting and self._polled:  # while items wait, each has a request or a timer
            names = sorted({*names, *self._polled})
        for name in names:
            state = self._machine.registry.find(name)
            if state is None:
                self._polled.discard(name)
            else:
                self._update(state, now, waiting=waiting, submitted=submitted)
        self._machine.clusters_to_refresh.clear()

    def request_newer(self, cluster: str, since: float, now: float) -> bool:
        """Is a snapshot newer than ``since`` on its way? Requests one if the last failure is older."""
        state = self._machine.registry.state(cluster)
        failed = state.refresh_failure
        if state.refreshing:
            return True
        if failed is None or failed.at >= since or state.breaker.state(now) is BreakerState.OPEN:
            return False
        self._request_snapshot(state, now)
        return True

    def _update(self, state: ClusterState, now: float, *, waiting: bool, submitted: bool) -> None:
        key = timers.refresh_key(state.name)
        wanted = waiting or bool(state.slots.held or state.slots.prefetched)
        if state.receives_updates() and state.dead is None and state.breaker.state(now) is BreakerState.CLOSED:
            self._polled.discard(state.name)
            self._update_dashboard_check(state, now, wanted=wanted)
            return
        self._polled.add(state.name)  # a submission may trigger a request
        due = None if state.refreshing else self._due_at(state, now)
        if due is not None and now >= due and (wanted or (submitted and state.problem(now) is not None)):
            self._request_snapshot(state, now)
        elif due is not None and wanted:
            self._machine.output.set_timer(key, max(due, now))
        else:
            self._machine.output.clear_timer(key)

    def _update_dashboard_check(self, state: ClusterState, now: float, *, wanted: bool) -> None:
        """The link reports the health of the cluster, but jobs need its dashboard, which may fail by itself."""
        key = timers.refresh_key(state.name)
        due = max(state.link_up_at, state.dashboard_checked_at or 0.0) + self._machine.settings.health_check_interval_s
        if state.dashboard_failure is not None and state.dashboard_checked_at is None:
            due = now  # a dispatch found it silent: verify
        if not wanted or state.checking_dashboard:
            self._machine.output.clear_timer(key)
        elif now < due:
            self._machine.output.set_timer(key, due)
        else:
            self._machine.output.clear_timer(key)
            state.checking_dashboard = True
            self._machine.output.add(CheckDashboard(state.name))

    def _request_snapshot(self, state: ClusterState, now: float) -> None:
        state.refreshing = True
        state.refresh_requested_at = now
        self._machine.output.clear_timer(timers.refresh_key(state.name))
        self._machine.output.add(RefreshSnapshot(state.name))

    def _due_at(self, state: ClusterState, now: float) -> float | None:
        """When the next snapshot is due."""
        if state.breaker.state(now) is BreakerState.OPEN:
            return state.breaker.half_open_at
        if state.refresh_failure is not None and state.refresh_failure.permanent:
            return state.refresh_failure.at + self._machine.settings.breaker_recovery_s
        last = max(
            (at for at in (state.refresh_requested_at, state.snapshot_received_at) if at is not None), default=None
        )
        if last is None:
            return now
        due = last + self._machine.settings.snapshot_interval_s
        return min(due, max(last + _REPORT_DELAY_S, self._next_report_at(state, due)))

    def _next_report_at(self, state: ClusterState, due: float) -> float:
        """When the cluster's next report can be read; ``due`` if that is unknown or the interval is longer anyway. If
        the cluster's clock differs from ours, its report seems too new or too old for this, or is read at another
        moment between two reports."""
        seen = state.ledger.latest_snapshot
        longer = self._machine.settings.snapshot_interval_s > REPORT_INTERVAL_S
        if longer or seen is None or seen.reported_at is None:
            return due
        fresh = 0.0 <= seen.taken_at - seen.reported_at < REPORT_INTERVAL_S
        return seen.reported_at + REPORT_INTERVAL_S + _REPORT_DELAY_S if fresh else due
