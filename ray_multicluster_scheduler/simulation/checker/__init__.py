"""An independent judge of histories: one small class per guarantee (docs/guarantees.md). It reads lines, nothing else.

Of the scheduler it knows only the model, the settings, and the classes of events and instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.simulation.checker.attempts import AtMostOneLiveAttempt, FencesOnlyGrow
from ray_multicluster_scheduler.simulation.checker.breakers import UserErrorsNeverOpenABreaker
from ray_multicluster_scheduler.simulation.checker.cancelled import CancelledWorkDoesNotGoOn
from ray_multicluster_scheduler.simulation.checker.capacity import ReservationsNeverExceedCapacity
from ray_multicluster_scheduler.simulation.checker.ends import EveryAcceptedTaskReachesExactlyOneTerminalState
from ray_multicluster_scheduler.simulation.checker.history_index import Story
from ray_multicluster_scheduler.simulation.checker.idle import IdleFleetStartsAtOnce
from ray_multicluster_scheduler.simulation.checker.leftovers import NothingIsLeft, RebuildEqualsLive
from ray_multicluster_scheduler.simulation.checker.order import Order
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, Property, replay
from ray_multicluster_scheduler.simulation.checker.reasons import EveryWaitingTaskHasATrueReason
from ray_multicluster_scheduler.simulation.checker.rules import RulesNeverBroken
from ray_multicluster_scheduler.simulation.checker.starvation import NoStarvation
from ray_multicluster_scheduler.simulation.checker.violation import Violation
from ray_multicluster_scheduler.simulation.history import Line

PROPERTIES: dict[str, type[Property]] = {
    one.name: one
    for one in (
        EveryAcceptedTaskReachesExactlyOneTerminalState,
        AtMostOneLiveAttempt,
        FencesOnlyGrow,
        ReservationsNeverExceedCapacity,
        RulesNeverBroken,
        Order,
        NoStarvation,
        EveryWaitingTaskHasATrueReason,
        IdleFleetStartsAtOnce,
        RebuildEqualsLive,
        NothingIsLeft,
        CancelledWorkDoesNotGoOn,
        UserErrorsNeverOpenABreaker,
    )
}

__all__ = ["PROPERTIES", "Property", "Violation", "judge"]


def judge(history: Sequence[Line]) -> list[Violation]:
    """All properties, in the order of the lines."""
    story = Story(history)
    judges = [kind() for kind in PROPERTIES.values()]
    with_book = [one for one in judges if isinstance(one, BookJudge)]
    replay(story, history, with_book)
    for one in judges:
        if not isinstance(one, BookJudge):
            one.read(story, history)
        else:
            one.beside_the_book(story)
    return sorted((found for one in judges for found in one.found), key=lambda found: found.line)
