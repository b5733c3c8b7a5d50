"""The checker judges recorded histories: one small class per guarantee of docs/guarantees.md.

It reads history lines and nothing else: of the scheduler it imports only the model, the settings, and the classes of
events and instructions, never the machine (an import contract enforces that). Start with `judge` below, then
`property.py` for the base classes; `history_state.py` derives the state of items and clusters from the lines.
`faulty/`, `rmcs replay` and the tests import it.
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
    QuotaNeverExceeded,
    ReservationsNeverExceedCapacity,
    RulesNeverBroken,
)
from ray_multicluster_scheduler.simulation.checker.preemption_properties import (
    APreemptionUsesNoRetry,
    FreedRoomIsKept,
    NothingIsStoppedForNobody,
    OnlyPreemptibleItemsGiveWay,
    SavedStateArrives,
)
from ray_multicluster_scheduler.simulation.checker.property import (
    HistoryIndex,
    Property,
    StateProperty,
    Violation,
    check_states,
)
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
        QuotaNeverExceeded,
        OnlyPreemptibleItemsGiveWay,
        NothingIsStoppedForNobody,
        FreedRoomIsKept,
        APreemptionUsesNoRetry,
        SavedStateArrives,
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
    """Check all properties. Returns their violations in the order of the lines."""
    index = HistoryIndex(history)
    properties = [kind() for kind in PROPERTIES.values()]
    check_states(index, history, [one for one in properties if isinstance(one, StateProperty)])
    for one in properties:
        if isinstance(one, StateProperty):
            one.check_index(index)
        else:
            one.check(index, history)
    return sorted((violation for one in properties for violation in one.found), key=lambda found: found.line)
