"""Observes handles without polling: whether a call has ended or is queued, and whether an actor has died.

Outside of a cluster a handle has an item that reports each state transition. Inside a cluster Ray reports only the end,
and the death of an actor is known only from the calls that failed with it. Standard library only: workers load this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.common.exception import ActorDiedError
from ray_multicluster_scheduler.common.model.states import TaskState

QUEUED_STATES = frozenset({TaskState.PENDING, TaskState.QUEUED, TaskState.RETRYING})
"""States in which no part of an item is on a cluster."""
_ACTOR_DIED = "ACTOR_DIED"
_NOT_DEAD = frozenset({"ActorUnavailableError", "RemoteTraceback"})
"""Causes of an ActorDiedError that do not prove a death: Ray may be restarting the actor, or its own code raised it."""


def item_of(handle: object) -> Any:
    """Return the item of a task, call or actor handle; None inside a cluster and for any other object."""
    item = getattr(handle, "_item", None)
    return item if hasattr(item, "watch") else None


def on_done(handle: Any, callback: Callable[[], object]) -> None:
    """Call ``callback`` once when the handle is done, immediately if it is already. It runs on the thread that notices,
    so it must not block or raise."""
    item = item_of(handle)
    if item is None:
        handle.add_done_callback(lambda _: callback())
    else:
        item.watch(lambda _: callback())


def is_queued(handle: object) -> bool:
    """Is it known to be on no cluster now? Inside a cluster Ray has each submission at once, so it never is."""
    item = item_of(handle)
    return item is not None and item.state in QUEUED_STATES


def has_ended(actor: Any) -> bool:
    """Has the actor ended, as far as known? Objects that are not our handles may have a terminal ``state``."""
    item = item_of(actor)
    if item is not None:
        return bool(item.done())
    if getattr(actor, "_rmcs_actor_handle", False) is True:
        return False
    return getattr(getattr(actor, "state", None), "terminal", False) is True


def actor_died_in(call: Any) -> bool:
    """Did the cluster report that the actor died during this call? ``call`` is the item of a finished call."""
    outcome = call.outcome
    if outcome is None or outcome.origin is not None or outcome.result is None:
        return False
    return bool(outcome.result.task_id == call.id and outcome.result.code == _ACTOR_DIED)


def is_actor_death(error: BaseException | None) -> bool:
    """Does this error of a call show that its actor died? For calls without an item."""
    return isinstance(error, ActorDiedError) and type(error.__cause__).__name__ not in _NOT_DEAD


def will_restart(actor: Any) -> bool:
    """Is the actor known to be restarted after a death?"""
    item = item_of(actor)
    description = None if item is None else item.task.actor
    return description is not None and description.max_restarts != 0 and not item.done()


def on_restart_or_end(actor: Any, attempt: int, callback: Callable[[], object]) -> None:
    """Call ``callback`` once, when an attempt other than this dead one takes calls or the actor has ended. It must not
    block or raise."""
    item = item_of(actor)
    first = threading.Lock()

    def check(_: object) -> None:
        step = item.transition
        restarted = step is not None and step.state is TaskState.RUNNING and step.attempt != attempt
        if (restarted or item.done()) and first.acquire(blocking=False):
            item.unwatch_transitions(check)
            callback()

    item.watch_transitions(check)
    check(item)
