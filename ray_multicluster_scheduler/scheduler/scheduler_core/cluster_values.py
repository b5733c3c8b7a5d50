"""ClusterValues: fetches and releases result values that stay in the clusters where they were computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult, ClusterLink
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import value_lost


class Links(Protocol):
    """The existing links."""

    def existing_link(self, cluster: str) -> ClusterLink | None: ...

    def links(self) -> Iterable[ClusterLink]: ...


class ClusterValues:
    """Used on the control plane's loop."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def fetch(self, cluster: str | None, result: CallResult) -> bytes:
        """Fetch the pickled value. Raises ResultLostError."""
        link = self._link(cluster, result)
        if link is None:
            raise value_lost(result.task_id, cluster, "the agent that held it has ended")
        return await link.fetch(result.task_id, result.attempt)

    def release_value(self, cluster: str | None, result: CallResult) -> None:
        """Release a value that is no longer needed."""
        link = self._link(cluster, result)
        if link is not None:
            link.release_value(result.task_id, result.attempt)

    def release_values_older_than(self, seconds: float) -> None:
        """Release all values that are older than this."""
        for link in self._links.links():
            link.release_values_older_than(seconds)

    def _link(self, cluster: str | None, result: CallResult) -> ClusterLink | None:
        link = None if cluster is None else self._links.existing_link(cluster)
        return link if link is not None and link.agent == result.kept_by else None
