"""The part of a UnifiedScheduler with which an operator takes clusters out of use."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod

from ray_multicluster_scheduler.app.client_api.embedded.submission import Submission
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import checked_reason
from ray_multicluster_scheduler.scheduler.lifecycle.events import CordonChanged

_POLL_S = 0.05


class ClusterVerbs(ABC):
    """Each is by the cluster's name. Safe from any thread."""

    def cordon(self, cluster: str) -> None:
        """Close a cluster for new work until :meth:`uncordon`; what was sent ahead comes back, what runs there goes on.

        Raises ConfigurationError for one that is not there, as the others here do.
        """
        self._cordon(cluster, "cordon", cordoned=True)

    def uncordon(self, cluster: str) -> None:
        """The end of :meth:`cordon` and :meth:`drain`."""
        self._cordon(cluster, "uncordon", cordoned=False)

    def drain(self, cluster: str, timeout: float | None = None) -> bool:
        """Close a cluster for new work and wait until nothing is there any more, so many seconds at the most: True when
        it is empty. With 0 it only says whether it is; so does ``items`` in :meth:`list_clusters`.

        Raises SchedulerError when somebody opens it again meanwhile.
        """
        patience = _patience(timeout)
        runtime = self._cordon(cluster, "drain", cordoned=True)
        deadline = time.monotonic() + patience
        while not (drained := runtime.is_drained(cluster)):
            if time.monotonic() >= deadline:
                return False
            if drained is None:
                raise SchedulerError(
                    f"Cluster {cluster!r} was not drained: somebody opened it for new work again.",
                    cluster=cluster,
                    next_step="drain it again, if nothing should go there",
                )
            time.sleep(_POLL_S)
        return True

    def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        """Say that a cluster is dead, if you know it: what was there is settled now instead of when it is given up.

        What may be repeated goes elsewhere; what may not (a job without ``retry_lost``) fails with ClusterLostError. It
        takes no work before it answers again, and what of that still runs there then is cancelled. Returns the ids of
        what was there.

        Raises SchedulerError for a cluster that answers, unless ``force`` is given, and ConfigurationError for one that
        is not there.
        """
        name, why = _name(cluster, "declare_dead"), checked_reason(reason)
        runtime, _ = self._started()
        return runtime.declare_dead(name, why, force=force)

    def _cordon(self, cluster: str, verb: str, *, cordoned: bool) -> ControlPlane:
        name = _name(cluster, verb)
        runtime, _ = self._started()
        runtime.check_cluster(name)
        runtime.tell(CordonChanged(name, cordoned))
        return runtime

    @abstractmethod
    def _started(self) -> tuple[ControlPlane, Submission]:
        """The scheduler that these verbs are part of has it."""


def _name(cluster: object, verb: str) -> str:
    if not isinstance(cluster, str) or not cluster:
        raise ConfigurationError(
            f"{verb} was given {cluster!r}, which is no cluster.", next_step="give the cluster's name as text"
        )
    return cluster


def _patience(timeout: object) -> float:
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ConfigurationError(
            f"timeout is {timeout!r}.", next_step="give seconds, 0 not to wait, or None to wait until it is empty"
        )
    return float(timeout)
