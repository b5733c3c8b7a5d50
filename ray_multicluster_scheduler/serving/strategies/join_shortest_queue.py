"""JoinShortestQueueStrategy: the instance with the fewest tasks for each of its slots; no prediction is used."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.serving.strategies.base import BaseStrategy, Candidate, Choice, RequestView, shortest


class JoinShortestQueueStrategy(BaseStrategy):
    """Counts tasks, whatever their length."""

    name = "join_shortest_queue"

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        return shortest(candidates)
