"""Interprets a scheduling decision: whether the item is placed, waits or cannot run, and why."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision
from ray_multicluster_scheduler.common.tables import MAX_NAMED, main_rejection
from ray_multicluster_scheduler.scheduler.policy.reasons import (
    ABOVE_THRESHOLD,
    HEALTH_CODES,
    MAX_IN_FLIGHT,
    MAX_RUNNING_JOBS,
    NO_CAPACITY,
    SERIAL,
    SUBMISSION_INTERVAL,
    unblocked_by,
)

CAPACITY_CODES = frozenset({NO_CAPACITY, ABOVE_THRESHOLD})
RATE_CODES = frozenset({SUBMISSION_INTERVAL, SERIAL, MAX_IN_FLIGHT, MAX_RUNNING_JOBS})


class Verdict(Enum):
    """The consequence of a decision: dispatch, wait or fail."""

    PLACED = "placed"
    WAIT = "wait"
    INFEASIBLE = "infeasible"  # no cluster could ever run it
    UNHEALTHY = "unhealthy"  # the clusters that could run it do not answer


def verdict(decision: SchedulingDecision) -> Verdict:
    """INFEASIBLE and UNHEALTHY mean that every cluster rejects it permanently."""
    if decision.cluster is not None:
        return Verdict.PLACED
    if all(never_fits(row) for row in decision.candidates) and decision.candidates:
        return Verdict.INFEASIBLE
    if all(permanently_rejected(row) for row in decision.candidates):
        return Verdict.UNHEALTHY
    return Verdict.WAIT


def never_fits(row: CandidateReport) -> bool:
    """Does it reject the item permanently, for a reason that lies in the item?"""
    return any(one.permanent and one.code not in HEALTH_CODES for one in row.rejections)


def permanently_rejected(row: CandidateReport) -> bool:
    """Does it reject the item for any reason that waiting does not solve?"""
    return any(one.permanent for one in row.rejections)


def lacks_capacity_only(row: CandidateReport) -> bool:
    """Is missing capacity the only reason?"""
    return bool(row.rejections) and all(one.code in CAPACITY_CODES for one in row.rejections)


def lacks_capacity(row: CandidateReport) -> bool:
    """Is capacity missing, and are all other reasons limits that pass as our items there end?"""
    codes = {one.code for one in row.rejections}
    return not codes.isdisjoint(CAPACITY_CODES) and codes <= CAPACITY_CODES | RATE_CODES


def closest_candidate(rows: Sequence[CandidateReport]) -> CandidateReport:
    """The candidate that is closest to accepting the item: feasible, not permanently rejected, with the fewest
    reasons."""
    return min(rows, key=_distance)


def _distance(row: CandidateReport) -> tuple[bool, bool, int]:
    return never_fits(row), permanently_rejected(row), len(row.rejections)


def unblocking_conditions(rows: Sequence[CandidateReport]) -> str | None:
    """The conditions that would unblock the item, for all candidates as close as the closest one; None if only users'
    policies know."""
    nearest = closest_candidate(rows)
    names: dict[str, list[str]] = {main_rejection(nearest).code: []}
    for row in rows:
        if _distance(row) == _distance(nearest):
            names.setdefault(main_rejection(row).code, []).append(row.cluster)
    phrases = [unblocked_by(code, _one_of(clusters)) for code, clusters in names.items()]
    return ", or ".join(phrase for phrase in phrases if phrase) or None


def _one_of(names: Sequence[str]) -> str:
    named = list(names[:MAX_NAMED])
    more = len(names) - len(named)
    if more:
        return f"{', '.join(named)} or {more} more"
    return " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def waiting_sentence(rows: Sequence[CandidateReport]) -> str:
    """The reason to wait, in one sentence, from the rows of clusters that may accept it later."""
    parts = [f"{row.cluster}: {main_rejection(row).sentence}" for row in rows[:MAX_NAMED]]
    more = len(rows) - len(parts)
    return "; ".join([*parts, f"and {more} more"] if more > 0 else parts).replace(".; ", "; ")
