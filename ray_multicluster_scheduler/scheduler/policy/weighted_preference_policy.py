"""WeightedPreferencePolicy, registered as ``load``: the default score, by free resources, weight and CPU use."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView

MEMORY_SHARE = 0.1
GPU_SHARE = 5.0
PREFER_FACTOR = 1.2
_GIB = 1024.0**3


class WeightedPreferencePolicy:
    """``(cpu_free·w + 0.1·mem_free_GiB·w + 5·gpu_free) · (1.2 if prefer else 1) · (1 - cpu_util)``.

    The GPU term counts only for items that ask for a GPU. Items of ours there that hold no resources share what is
    free with the new one: with *n* of them it counts 1 / (1 + n), so that such items spread in proportion to the score
    of the idle clusters. Combined as x/(1+x).
    """

    name = "load"
    counts_undeclared = True

    def trait(self, task: TaskDescription) -> bool:
        return bool(task.placement.get("GPU"))

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        raw = self.raw(task, cluster)
        return raw / (1.0 + raw)

    def lowest_near(self, score: float, share: float) -> float:
        """The lowest score whose raw score is within this share of that of ``score``. The raw scores are compared
        because all scores near 1 differ little."""
        raw = score / (1.0 - score) * (1.0 - share)
        return raw / (1.0 + raw)

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        weight = cluster.metadata.weight
        free = cluster.free
        room = free.get("CPU", 0.0) * weight + MEMORY_SHARE * free.get("memory", 0.0) / _GIB * weight
        if task.placement.get("GPU"):
            room += GPU_SHARE * free.get("GPU", 0.0)
        preference = PREFER_FACTOR if cluster.metadata.prefer else 1.0
        return room * preference * (1.0 - cluster.use.get("CPU", 0.0)) / (1 + cluster.undeclared)
