"""What a user of the scheduler might write: a filter, a rank and a score, and some that are broken."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class NoMondays:
    name = "no_mondays"
    by_kind = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        return Rejection("MONDAY", "it is Monday there") if "monday" in cluster.metadata.tags else None


class NightShift:
    """Clusters where it is night come first."""

    name = "night_shift"

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        return int("night" in cluster.metadata.tags)


class Cheapness:
    """A tag such as ``price:3``; 0 is free, 10 is dear."""

    name = "cheapness"

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        prices = [float(tag.removeprefix("price:")) for tag in cluster.metadata.tags if tag.startswith("price:")]
        return 1.0 - min(prices, default=10.0) / 10.0


CHEAPNESS = Cheapness()
"""An object that is a policy, for those who do not name a class."""


class Grumpy:
    name = "grumpy"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        raise RuntimeError("not in the mood")


class YesOrNo:
    """A filter as beginners write it: it answers with a bool."""

    name = "yes_or_no"

    def check(self, task: TaskDescription, cluster: ClusterView) -> bool:
        return False


class HalfRank:
    name = "half_rank"

    def rank(self, task: TaskDescription, cluster: ClusterView) -> float:
        return 0.5


class TooGood:
    name = "too_good"

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        return 2.0


class Wordy:
    name = "wordy"

    def score(self, task: TaskDescription, cluster: ClusterView) -> str:
        return "good"


class Sulky:
    """Its score is right, but not the figure that people are shown."""

    name = "sulky"

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        return 0.5

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        raise RuntimeError("no figures today")


class Forgetful:
    name = "forgetful"

    def __init__(self) -> None:
        self.asked = False

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        if not self.asked:
            self.asked = True
            raise KeyError("what was it")
        return 0.5


class BothAtOnce(NoMondays, NightShift):
    name = "both"


class NeedsArguments:
    def __init__(self, price: float) -> None:
        self.price = price


def a_class() -> type:
    """A factory that forgot to call."""
    return NoMondays
