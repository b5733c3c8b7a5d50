"""A value that was left in its cluster, and is brought here because something else needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ray_multicluster_scheduler.common.exception import SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome, Promise

Then: TypeAlias = Callable[[SchedulerError | None], object]
Bring: TypeAlias = Callable[[Promise, Then], None]
"""Lets the value of an item come here. Afterwards it has that like any other, or it is told what is wrong."""


def is_away(outcome: Outcome | None) -> bool:
    """Is its value in a cluster?"""
    return outcome is not None and outcome.result is not None and outcome.result.kept is not None


def brought(outcome: Outcome, payload: bytes) -> Outcome:
    """The same, with its value."""
    assert outcome.result is not None
    return replace(outcome, result=replace(outcome.result, payload=payload, kept=None, kept_by=None))


def not_in_time(outcome: Outcome, timeout: float) -> TaskTimeoutError:
    done = outcome.completion
    return TaskTimeoutError(
        f"{done.task_id} is over, and its value did not come from cluster {done.cluster!r} within {timeout:g} s.",
        task_id=done.task_id,
        cluster=done.cluster,
        next_step="wait longer: the cluster may be out of reach for a while",
    )
