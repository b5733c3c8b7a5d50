"""FleetViews: cached views of all clusters."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.common.model.resources import total_of
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class FleetViews:
    """Renews only the views that have changed: checking two hundred clusters for every decision would cost more than
    the decision."""

    def __init__(self, registry: ClusterRegistry, view: Callable[[ClusterState, float], ClusterView]) -> None:
        self._registry, self._view = registry, view
        self.by_name: dict[str, ClusterView] = {}
        """As of the last call of :meth:`views`."""
        self._views: tuple[ClusterView, ...] = ()
        self._until: dict[str, float] = {}
        self._next_expiry = inf
        self._total: Resources | None = None

    def views(self, now: float) -> tuple[ClusterView, ...]:
        """The current views, in the order of configuration."""
        if now >= self._next_expiry:
            self._registry.changed.update(name for name, until in self._until.items() if until <= now)
        changed = self._registry.changed
        if changed:
            if len(changed) == 1 and self._refresh_one(next(iter(changed)), now):
                changed.clear()
                self._views = tuple(self.by_name.values())
                return self._views
            if changed.issubset(self.by_name) and all(self._registry.find(name) for name in changed):
                self.by_name.update({name: self._refreshed(name, now) for name in changed})
            else:
                self.by_name = {name: self._refreshed(name, now) for name in self._registry.names()}
                self._until = {name: self._until[name] for name in self.by_name if name in self._until}
            changed.clear()
            self._next_expiry = min(self._until.values(), default=inf)
            self._views = tuple(self.by_name.values())
        return self._views

    def view(self, name: str, now: float) -> ClusterView:
        """The current view of one cluster."""
        self.views(now)
        return self.by_name[name]

    def total(self, now: float) -> Resources:
        """The total of all clusters, as of the last change of nodes."""
        if self._total is None:
            self._total = total_of(view.total for view in self.views(now))
        return self._total

    def invalidate_total(self) -> None:
        """The nodes of a cluster have changed."""
        self._total = None

    def _refresh_one(self, name: str, now: float) -> bool:
        """The most frequent case: our own work changed on one cluster. False if it is not that case."""
        state = self._registry.find(name)
        if state is None or name not in self.by_name or name in self._until:
            return False
        view = self._view(state, now)
        if state.view_until < inf:
            return False
        self.by_name[name] = view
        return True

    def _refreshed(self, name: str, now: float) -> ClusterView:
        state = self._registry.state(name)
        view = self._view(state, now)
        if state.view_until < inf:
            self._until[name] = state.view_until
        else:
            self._until.pop(name, None)
        return view
