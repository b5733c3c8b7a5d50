"""Refresher: asks clusters for snapshots while that is of use, and only then."""

from __future__ import annotations

from collections.abc import Iterable

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CheckDashboard, RefreshSnapshot
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import Core


class Refresher:
    """At most one question to a cluster at a time.

    A cluster is polled while anything waits, or something of ours runs there. Where a link tells us of every change,
    only the dashboard is checked now and then. With nothing to do nobody is asked; a submission then asks once.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting = False
        self._restless = set(core.registry.names())

    def run(self, now: float, *, submitted: bool) -> None:
        """Once at the end of each call, for the clusters that it concerned."""
        waiting = len(self._core.queue) > 0
        names: Iterable[str] = sorted(self._core.touched)
        if waiting != self._waiting:
            names, self._waiting = self._core.registry.names(), waiting
        elif submitted and not waiting and self._restless:  # while anything waits, each was asked or has its timer
            names = sorted({*names, *self._restless})
        for name in names:
            state = self._core.registry.find(name)
            if state is None:
                self._restless.discard(name)
            else:
                self._look(state, now, waiting=waiting, submitted=submitted)
        self._core.touched.clear()

    def ask_anew(self, cluster: str, since: float, now: float) -> bool:
        """Is an answer on its way that is newer than ``since``? Asks, if the last one is older."""
        state = self._core.registry.state(cluster)
        failed = state.refresh_failed
        if state.refreshing:
            return True
        if failed is None or failed.at >= since or state.breaker.state(now) is BreakerState.OPEN:
            return False
        self._ask(state, now)
        return True

    def _look(self, state: ClusterState, now: float, *, waiting: bool, submitted: bool) -> None:
        key = timers.refresh_key(state.name)
        wanted = waiting or bool(state.places.held or state.places.ahead)
        if state.pushed() and state.dead is None and state.breaker.state(now) is BreakerState.CLOSED:
            self._restless.discard(state.name)
            self._look_at_dashboard(state, now, wanted=wanted)
            return
        self._restless.add(state.name)  # a submission may be a reason to ask it
        due = None if state.refreshing else self._due_at(state, now)
        if due is not None and now >= due and (wanted or (submitted and state.trouble(now) is not None)):
            self._ask(state, now)
        elif due is not None and wanted:
            self._core.out.set_timer(key, max(due, now))
        else:
            self._core.out.clear_timer(key)

    def _look_at_dashboard(self, state: ClusterState, now: float, *, wanted: bool) -> None:
        """Its link says how the cluster is, but jobs go by its dashboard, which may be silent all the same."""
        key = timers.refresh_key(state.name)
        due = max(state.link_up_at, state.checked_at or 0.0) + self._core.settings.health_check_interval_s
        if state.dashboard_silence is not None and state.checked_at is None:
            due = now  # somebody else found it silent: see whether it is
        if not wanted or state.checking:
            self._core.out.clear_timer(key)
        elif now < due:
            self._core.out.set_timer(key, due)
        else:
            self._core.out.clear_timer(key)
            state.checking = True
            self._core.out.put(CheckDashboard(state.name))

    def _ask(self, state: ClusterState, now: float) -> None:
        state.refreshing = True
        state.asked_at = now
        self._core.out.clear_timer(timers.refresh_key(state.name))
        self._core.out.put(RefreshSnapshot(state.name))

    def _due_at(self, state: ClusterState, now: float) -> float | None:
        """When it should be asked next."""
        if state.breaker.state(now) is BreakerState.OPEN:
            return state.breaker.half_open_at
        if state.refresh_failed is not None and state.refresh_failed.permanent:
            return state.refresh_failed.at + self._core.settings.breaker_recovery_s
        last = max((at for at in (state.asked_at, state.snapshot_heard_at) if at is not None), default=None)
        return now if last is None else last + self._core.settings.snapshot_interval_s
