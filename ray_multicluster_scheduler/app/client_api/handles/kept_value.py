"""A value that was left in its cluster, and is brought here because something else needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from ray_multicluster_scheduler.app.client_api.handles.item import Outcome, Promise
from ray_multicluster_scheduler.common.exception import SchedulerError


def is_away(outcome: Outcome | None) -> bool:
    """Is its value in a cluster?"""
    return outcome is not None and outcome.result is not None and outcome.result.kept is not None


def brought(outcome: Outcome, payload: bytes) -> Outcome:
    """The same, with its value."""
    assert outcome.result is not None
    return replace(outcome, result=replace(outcome.result, payload=payload, kept=None, kept_by=None))


async def bring_and_tell(
    item: Promise,
    bring: Callable[[Outcome], Awaitable[Outcome]],
    then: Callable[[SchedulerError | None], object],
) -> None:
    """Once it is here the item has it like any other value; ``then`` hears what is wrong, if something is."""
    try:
        outcome = item.outcome
        if outcome is not None and is_away(outcome):
            item.outcome = await bring(outcome)
    except SchedulerError as error:
        then(error)
    else:
        then(None)
