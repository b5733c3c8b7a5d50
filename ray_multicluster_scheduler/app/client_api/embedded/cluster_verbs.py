"""The part of a UnifiedScheduler with which an operator takes clusters out of use."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ray_multicluster_scheduler.app.client_api.embedded import fleet_control
from ray_multicluster_scheduler.app.client_api.embedded.runtime import Runtime
from ray_multicluster_scheduler.app.client_api.embedded.submission import Submission
from ray_multicluster_scheduler.app.client_api.options import explained_by
from ray_multicluster_scheduler.common.exception import ConfigurationError


class ClusterVerbs(ABC):
    """Each is by the cluster's name. Safe from any thread."""

    def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        """Say that a cluster is dead, if you know it: what was there is settled now instead of when it is given up.

        What may be repeated goes elsewhere; what may not (a job without ``retry_lost``) fails with ClusterLostError. It
        takes no work before it answers again, and what of that still runs there then is cancelled. Returns the ids of
        what was there.

        Raises SchedulerError for a cluster that answers, unless ``force`` is given, and ConfigurationError for one that
        is not there.
        """
        name, why = _name(cluster, "declare_dead"), explained_by(reason)
        runtime, _ = self._started()
        return runtime.run(fleet_control.declare_dead(runtime, name, why, force=force))

    @abstractmethod
    def _started(self) -> tuple[Runtime, Submission]:
        """The scheduler that these verbs are part of has it."""


def _name(cluster: object, verb: str) -> str:
    if not isinstance(cluster, str) or not cluster:
        raise ConfigurationError(
            f"{verb} was given {cluster!r}, which is no cluster.", next_step="give the cluster's name as text"
        )
    return cluster
