"""What is known of the death of an actor, without asking the actor.

Outside of a cluster the control plane says how an actor is. Inside nobody does, and asking Ray takes a call of the
actor: there a death is known from the calls that died with it. Standard library only: a worker loads this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.app.client_api.executor.handle_watch import item_of
from ray_multicluster_scheduler.common.exception import ActorDiedError
from ray_multicluster_scheduler.common.model.states import TaskState

_ACTOR_DIED = "ACTOR_DIED"
_NOT_DEAD = frozenset({"ActorUnavailableError", "RemoteTraceback"})
"""Causes of an ActorDiedError that tell of no death: Ray may be restarting it, or its own code raised the error."""


def has_ended(actor: Any) -> bool:
    """Is it known to be over? What is no handle of ours may have a ``state`` that says so."""
    item = item_of(actor)
    if item is not None:
        return bool(item.done())
    if getattr(actor, "_rmcs_actor_handle", False) is True:
        return False
    return getattr(getattr(actor, "state", None), "terminal", False) is True


def died_in(call: Any) -> bool:
    """Did the actor of this call (the item of one that is over) die, as the cluster says?"""
    outcome = call.outcome
    if outcome is None or outcome.origin is not None or outcome.result is None:
        return False
    return bool(outcome.result.task_id == call.id and outcome.result.code == _ACTOR_DIED)


def says_so(error: BaseException | None) -> bool:
    """The same by what a call raised, where there is no more to go by."""
    return isinstance(error, ActorDiedError) and type(error.__cause__).__name__ not in _NOT_DEAD


def is_restarted(actor: Any) -> bool:
    """Does it come back after a death, as far as can be known here?"""
    item = item_of(actor)
    description = None if item is None else item.task.actor
    return description is not None and description.max_restarts != 0 and not item.done()


def when_settled(actor: Any, attempt: int, tell: Callable[[], object]) -> None:
    """A call said that this attempt of the actor is dead: call ``tell``, once, when another one takes calls or the
    actor is over. ``tell`` must not block or raise."""
    item = item_of(actor)
    first = threading.Lock()

    def look(_: object) -> None:
        step = item.transition
        back = step is not None and step.state is TaskState.RUNNING and step.attempt != attempt
        if (back or item.done()) and first.acquire(blocking=False):
            item.unwatch_transitions(look)
            tell()

    item.watch_transitions(look)
    look(item)
