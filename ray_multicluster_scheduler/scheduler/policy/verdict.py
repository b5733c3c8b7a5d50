"""Reading a decision: shall the item wait, and what do we tell its owner?"""

from __future__ import annotations

from enum import Enum

from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision
from ray_multicluster_scheduler.scheduler.policy.reasons import HEALTH_CODES

_NAMED_CLUSTERS = 3


class Verdict(Enum):
    """What follows from a decision."""

    PLACED = "placed"
    WAIT = "wait"
    INFEASIBLE = "infeasible"  # no cluster could ever run it
    UNHEALTHY = "unhealthy"  # those that could, do not answer and are not expected to


def verdict(decision: SchedulingDecision) -> Verdict:
    """INFEASIBLE and UNHEALTHY mean that waiting is pointless for every single cluster."""
    if decision.cluster is not None:
        return Verdict.PLACED
    if all(never_fits(row) for row in decision.candidates) and decision.candidates:
        return Verdict.INFEASIBLE
    if all(hopeless(row) for row in decision.candidates):
        return Verdict.UNHEALTHY
    return Verdict.WAIT


def never_fits(row: CandidateReport) -> bool:
    """Does it reject the item for good, for a reason that lies in the item?"""
    return any(one.permanent and one.code not in HEALTH_CODES for one in row.rejections)


def hopeless(row: CandidateReport) -> bool:
    """Does it reject the item for any reason that waiting does not mend?"""
    return any(one.permanent for one in row.rejections)


def table(decision: SchedulingDecision) -> str:
    """The reasons, one cluster per line, for an error message; beside one that is final, passing ones are noise."""
    return "\n".join(f"  {row.cluster}: {'; '.join(_telling(row))}" for row in decision.candidates)


def _telling(row: CandidateReport) -> list[str]:
    final = [one for one in row.rejections if one.permanent]
    return [one.sentence for one in final or row.rejections]


def telling_row(rows: tuple[CandidateReport, ...]) -> CandidateReport:
    """The candidate that is nearest to taking the item: not excluded for good, and with the fewest reasons."""
    return min(rows, key=lambda row: (hopeless(row), len(row.rejections)))


def waiting_sentence(rows: tuple[CandidateReport, ...]) -> str:
    """Why it waits, in one sentence; clusters that are excluded for good are left out."""
    hopeful = [row for row in rows if not hopeless(row)] or list(rows)
    parts = [f"{row.cluster}: {row.rejections[0].sentence}" for row in hopeful[:_NAMED_CLUSTERS]]
    more = len(hopeful) - _NAMED_CLUSTERS
    return "; ".join([*parts, f"and {more} more"] if more > 0 else parts)
