"""ClusterManager: the life cycle of clusters: register, change, cordon, drain, uncordon, declare dead, remove.

It changes only the state of clusters in the registry. What such a change means for items (recall, retry, fail) is
decided in ``scheduler/lifecycle/fleet_events.py``, which calls it. Pure: no I/O and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Health of one cluster by the last events that the registry recorded.

    ``problem`` blocks all work, ``link_problem`` tasks and actors, ``job_problem`` jobs. ``evidence_of_life`` is the
    reason why the cluster cannot be dead, if there is one.
    """

    problem: ClusterProblem | None
    link_problem: ClusterProblem | None
    job_problem: ClusterProblem | None
    breaker: BreakerState
    evidence_of_life: str | None


class ClusterManager:
    """Changes and reads the life-cycle state of clusters. Methods raise ConfigurationError for an unknown name."""

    def __init__(self, registry: ClusterRegistry) -> None:
        self._registry = registry

    def register(self, metadata: ClusterMetadata) -> bool:
        """Add a cluster, or change the entry of a known one. Returns True if it is new."""
        is_new = self._registry.find(metadata.name) is None
        self._registry.register(metadata)
        return is_new

    def remove(self, name: str) -> None:
        """Forget a cluster with its bookings. Register it again to use it again."""
        self._registry.unregister(name)

    def cordon(self, name: str, reason: str = "") -> None:
        """Close the cluster for new work. What runs there continues. Without a reason, that of a past cordon stays."""
        state = self._registry.state(name)
        state.cordoned, state.cordon_reason = True, reason or state.cordon_reason

    def uncordon(self, name: str) -> None:
        """Open the cluster for new work again."""
        state = self._registry.state(name)
        state.cordoned, state.cordon_reason = False, ""

    def pause(self, name: str, reason: str) -> None:
        """Send nothing new to the cluster until :meth:`resume`."""
        self._registry.state(name).paused = reason

    def resume(self, name: str) -> None:
        """End a :meth:`pause`."""
        self._registry.state(name).paused = None

    def declare_dead(self, name: str, reason: str, now: float) -> None:
        """Record that an operator declared it dead; the cluster takes no work until it answers again."""
        why = f": {reason}" if reason else ""
        self._registry.state(name).mark_dead(f"an operator declared it dead{why}", now)

    def close_breaker(self, name: str, now: float) -> bool:
        """Send work there again at once, although it failed before. Returns False if its breaker was closed."""
        breaker = self._registry.state(name).breaker
        if breaker.state(now) is BreakerState.CLOSED:
            return False
        breaker.close()
        return True

    def restore(
        self, name: str, *, cordoned: bool, cordon_reason: str, paused: str | None, dead: ClusterProblem | None
    ) -> None:
        """Set what operators had ordered before a restart; a cluster that is no longer configured is ignored."""
        state = self._registry.find(name)
        if state is not None:
            state.cordoned, state.cordon_reason = cordoned, cordon_reason
            state.paused, state.dead = paused, dead

    def is_cordoned(self, name: str) -> bool:
        """Is the cluster closed for new work?"""
        return self._registry.state(name).cordoned

    def cordon_reason(self, name: str) -> str:
        """The reason why it is cordoned; empty if it is not, or no reason was given."""
        return self._registry.state(name).cordon_reason

    def is_drained(self, name: str) -> bool | None:
        """Has a cordoned cluster no items of ours left? None if it is not cordoned. To drain a cluster, cordon it and
        wait until this is True."""
        return not self.items_on(name) if self.is_cordoned(name) else None

    def items_on(self, name: str) -> list[str]:
        """Ids of the items that hold a slot there or were prefetched to it."""
        slots = self._registry.state(name).slots
        return [*slots.held, *slots.prefetched]

    def health(self, name: str, now: float) -> ClusterHealth:
        """The health of the cluster as last recorded."""
        state = self._registry.state(name)
        return ClusterHealth(
            state.problem(now),
            state.link_problem(now),
            state.job_problem(),
            state.breaker.state(now),
            state.evidence_of_life(now),
        )
