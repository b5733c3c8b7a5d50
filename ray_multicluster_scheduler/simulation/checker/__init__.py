"""An independent judge of histories: one small class per guarantee (docs/guarantees.md). It reads lines, nothing else.

Of the scheduler it knows only the model, the settings, and the classes of events and instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.simulation.checker.attempt_properties import (
    AtMostOneLiveAttempt,
    CancelledWorkDoesNotGoOn,
    EveryAcceptedTaskReachesExactlyOneTerminalState,
    FencesOnlyGrow,
    NothingIsLeft,
    RebuildEqualsLive,
)
from ray_multicluster_scheduler.simulation.checker.placement_properties import (
    IdleFleetStartsAtOnce,
    NoStarvation,
    Order,
    ReservationsNeverExceedCapacity,
    RulesNeverBroken,
)
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, Property, Story, Violation, replay
from ray_multicluster_scheduler.simulation.checker.state_dump_properties import (
    EveryWaitingTaskHasATrueReason,
    UserErrorsNeverOpenABreaker,
)
from ray_multicluster_scheduler.simulation.history import HistoryLine

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


def judge(history: Sequence[HistoryLine]) -> list[Violation]:
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
