"""PythonVersionFilter: pickled code needs the same minor version of Python on both sides."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import PYTHON_MISMATCH


class PythonVersionFilter:
    """Tasks and actors only; a cluster whose version is not known yet passes."""

    name = "python_version"
    by_kind = True
    lasting = True

    def __init__(self, local_python: str) -> None:
        self._local = _minor(local_python)

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if task.kind == "job" or cluster.python_version is None:
            return None
        there = _minor(cluster.python_version)
        if there == self._local:
            return None
        sentence = f"it runs Python {there}, the submitting program {self._local}: functions cannot be pickled across"
        return Rejection(PYTHON_MISMATCH, sentence, permanent=True)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
