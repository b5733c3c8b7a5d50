"""Refresher: asks clusters for snapshots while that is of use, and only then."""

from __future__ import annotations

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RefreshSnapshot


class Refresher:
    """At most one question to a cluster at a time.

    A cluster is polled while anything waits, or something of ours runs there, unless its link tells us of every
    change. With nothing to do nobody is asked; a submission then asks once.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting = False

    def run(self, now: float, *, submitted: bool) -> None:
        """Once at the end of each call, for the clusters that it concerned."""
        waiting = len(self._core.queue) > 0
        everyone = submitted or waiting != self._waiting
        self._waiting = waiting
        if not everyone and not self._core.touched:
            return
        for state in self._core.registry:
            if everyone or state.name in self._core.touched:
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
        due = None if state.refreshing else self._due_at(state, now)
        wanted = waiting or bool(state.places.held or state.places.ahead)
        if due is not None and now >= due and (wanted or (submitted and state.trouble(now) is not None)):
            self._ask(state, now)
        elif due is not None and wanted:
            self._core.out.set_timer(key, max(due, now))
        else:
            self._core.out.clear_timer(key)

    def _ask(self, state: ClusterState, now: float) -> None:
        state.refreshing = True
        state.asked_at = now
        self._core.out.clear_timer(timers.refresh_key(state.name))
        self._core.out.put(RefreshSnapshot(state.name))

    def _due_at(self, state: ClusterState, now: float) -> float | None:
        """When it should be asked next; None if its link tells us by itself."""
        breaker = state.breaker.state(now)
        if breaker is BreakerState.OPEN:
            return state.breaker.half_open_at
        if state.pushed() and breaker is BreakerState.CLOSED:
            return None
        if state.refresh_failed is not None and state.refresh_failed.permanent:
            return state.refresh_failed.at + self._core.settings.breaker_recovery_s
        last = max((at for at in (state.asked_at, state.snapshot_heard_at) if at is not None), default=None)
        return now if last is None else last + self._core.settings.snapshot_interval_s
