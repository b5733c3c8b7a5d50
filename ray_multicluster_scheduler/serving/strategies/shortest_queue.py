"""ShortestQueueStrategy: the instance that is expected to finish the request first. The default."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.serving.strategies.base import (
    BaseStrategy,
    Candidate,
    Choice,
    RequestView,
    lowest,
    shortest,
)


class ShortestQueueStrategy(BaseStrategy):
    """The lowest expected completion time: what is charged to the instance, plus the request's own time on its
    hardware, plus ``risk`` standard deviations of that sum."""

    name = "shortest_queue"

    def __init__(self, risk: float = 0.0) -> None:
        self.risk = risk

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        if any(one.prediction is None for one in candidates):
            return shortest(candidates)
        risk = self.risk
        if risk:
            chosen, _ = lowest(candidates, lambda one: one.finish_ms + risk * one.finish_std_ms)
        else:
            chosen, _ = lowest(candidates, lambda one: one.finish_ms)
        return Choice(chosen.instance, finish_reason(chosen))


def finish_reason(chosen: Candidate) -> str:
    """A sentence with the two parts of the expected completion time."""
    assert chosen.prediction is not None
    return (
        f"expected to finish in {chosen.finish_ms:.4g} ms: {chosen.wait_ms:.4g} ms of {chosen.length} tasks before it, "
        f"{chosen.prediction.mean_ms:.4g} ms of its own ({chosen.prediction.source})"
    )
