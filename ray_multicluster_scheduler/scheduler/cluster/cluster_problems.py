"""Problems of a cluster that keep it from accepting work, as ClusterProblem with code and sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState, CircuitBreaker
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.policy import reasons


@dataclass(frozen=True, slots=True)
class SnapshotFailure:
    """The last snapshot request failed."""

    at: float
    sentence: str
    permanent: bool
    awaited: bool = False
    """No request could be sent: its link is down, or its agent has not reconnected yet."""


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """No link could be made; tasks and actors are not sent there before ``retry_at``."""

    retry_at: float
    problem: ClusterProblem


def link_problem(failed: LinkFailure, now: float) -> ClusterProblem | None:
    """None if the next attempt to make a link is due."""
    if now >= failed.retry_at:
        return None
    problem = failed.problem
    sentence = f"no link for tasks could be made: {problem.sentence}"
    if not problem.permanent:
        sentence = f"{sentence.removesuffix('.')}. It is tried again in {failed.retry_at - now:.0f} s."
    return replace(problem, sentence=sentence)


def unreachable(failed: SnapshotFailure, breaker: CircuitBreaker, now: float) -> ClusterProblem:
    """The cluster has not answered since this process started."""
    if failed.awaited:
        return ClusterProblem(reasons.CLUSTER_UNKNOWN, failed.sentence, at=failed.at)
    sentence = f"it has not answered since it was added: {failed.sentence}"
    if breaker.state(now) is BreakerState.OPEN:
        again = f"It is not tried again for {_recovers_in(breaker, now):.0f} s ({_consecutive_failures(breaker)})."
        sentence = f"{sentence.removesuffix('.')}. {again}"
    return ClusterProblem(reasons.CLUSTER_UNREACHABLE, sentence, permanent=True, at=failed.at)


def breaker_problem(breaker: CircuitBreaker, now: float) -> ClusterProblem:
    """Its circuit breaker is open or half open."""
    probed = breaker.state(now) is BreakerState.HALF_OPEN
    return ClusterProblem(reasons.BREAKER_HALF_OPEN if probed else reasons.BREAKER_OPEN, _failing(breaker, now))


def silent_link(silent_s: float, lost: bool, breaker: CircuitBreaker, now: float) -> ClusterProblem:
    """Its link has been down for ``silent_s``; an open breaker is mentioned too."""
    also = "" if breaker.state(now) is BreakerState.CLOSED else f"; {_failing(breaker, now)}"
    if lost:
        return ClusterProblem(reasons.CLUSTER_LOST, f"its link has been silent for {silent_s:.0f} s: it is lost{also}")
    what = f"has been silent for {silent_s:.0f} s" if silent_s >= 1.0 else "broke less than a second ago"
    return ClusterProblem(reasons.CLUSTER_SUSPECT, f"its link {what}{also}")


def _failing(breaker: CircuitBreaker, now: float) -> str:
    """The number of failures, the time of the next probe, and the last failure."""
    again = f"is tried again in {_recovers_in(breaker, now):.0f} s"
    if breaker.state(now) is BreakerState.HALF_OPEN:
        again = "is being tried again"
    last = f"; the last time, {breaker.last_failure}" if breaker.last_failure else ""
    return f"it failed {_consecutive_failures(breaker)} and {again}{last}"


def silent_head(silent_s: float) -> ClusterProblem:
    """Its agent answers, but the head does not."""
    sentence = f"its link is up, but its head (GCS or raylet) has not answered for {silent_s:.0f} s"
    return ClusterProblem(reasons.HEAD_SILENT, sentence)


def _consecutive_failures(breaker: CircuitBreaker) -> str:
    return f"{breaker.failures_in_a_row} times in a row"


def _recovers_in(breaker: CircuitBreaker, now: float) -> float:
    return max(0.0, (breaker.half_open_at or now) - now)
