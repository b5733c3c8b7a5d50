"""ClusterRegistry: the clusters of the fleet by name, with everything recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata, ResourceSnapshot
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState


class ClusterRegistry:
    """The clusters in the order of configuration. Their life cycle is managed by ClusterManager."""

    def __init__(self, settings: Settings, clusters: Iterable[ClusterMetadata] = ()) -> None:
        self._settings = settings
        self._states: dict[str, ClusterState] = {}
        self.changed: set[str] = set()
        """Clusters whose view changed since FleetViews last read it."""
        self.rebooked: set[str] = set()
        """Items that were booked on another node since the machine last persisted them."""
        for metadata in clusters:
            self.register(metadata)

    def register(self, metadata: ClusterMetadata) -> None:
        """Add a cluster, or change the entry of a known one."""
        state = self._states.get(metadata.name)
        if state is None:
            self._states[metadata.name] = ClusterState(metadata, self._settings, self.changed.add, self.rebooked.add)
            self.changed.add(metadata.name)
        elif metadata != state.metadata:
            state.reconfigure(metadata)

    def unregister(self, name: str) -> None:
        """Forget a cluster. Raises ConfigurationError for an unknown name."""
        self.state(name)
        del self._states[name]
        self.changed.add(name)

    def get(self, name: str) -> ClusterMetadata:
        """The entry of a cluster. Raises ConfigurationError, with the known names, for an unknown one."""
        return self.state(name).metadata

    def list(self) -> tuple[ClusterMetadata, ...]:
        return tuple(state.metadata for state in self._states.values())

    def names(self) -> tuple[str, ...]:
        return tuple(self._states)

    def find_by_tag(self, tag: str) -> tuple[ClusterMetadata, ...]:
        return tuple(metadata for metadata in self.list() if tag in metadata.tags)

    def latest_snapshot(self, name: str) -> ResourceSnapshot | None:
        """The newest snapshot, or None. Raises ConfigurationError for an unknown name."""
        return self.state(name).ledger.latest_snapshot

    def state(self, name: str) -> ClusterState:
        """The state of a cluster. Raises ConfigurationError for an unknown name."""
        state = self._states.get(name)
        if state is None:
            raise ConfigurationError(self.unknown_name_message(name), cluster=name, next_step=self.name_hint(name))
        return state

    def find(self, name: str | None) -> ClusterState | None:
        """The state of a cluster that may be unknown, or None."""
        return None if name is None else self._states.get(name)

    def unknown_name_message(self, name: str) -> str:
        """The error message for an unknown name."""
        known = ", ".join(self._states) or "none at all"
        return f"There is no cluster {name!r}; the configured ones are: {known}."

    def name_hint(self, name: str) -> str:
        """The next step for an unknown name."""
        close = get_close_matches(name, self._states, n=1)
        if close:
            return f"did you mean {close[0]!r}?"
        return "use one of these names, or add the cluster to clusters.yaml"

    def __iter__(self) -> Iterator[ClusterState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)
