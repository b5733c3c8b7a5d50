"""How a program's work ends with the program, told item by item."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.notices import MAX_NAMED, notify, shorten
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import CallItem
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise, wait_for
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.policy import reasons

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

_SAY_AGAIN_S = 10.0
_LOOK_AGAIN_S = 0.1
_A_MOMENT_S = 0.2
STOP_PATIENCE_S = 15.0
FORCE_PATIENCE_S = 5.0
MAX_LINES = 20
"""So many items are told of one by one."""
_KEPT_BACK = frozenset({codes.HELD, reasons.OWNER_PAUSED, reasons.QUEUE_PAUSED})
_INTERRUPTED = "the program that submitted it was interrupted"
_SHUT_DOWN = "the scheduler was shut down"


def drain(runtime: Runtime) -> None:
    """Wait until everything is over but living actors and gangs of them, which end with the program or outlive it, and
    calls that were sent to detached ones, which go on without us. Ctrl+C cancels what is left instead."""
    try:
        say_at = time.monotonic() + _A_MOMENT_S  # what was cancelled just now, say, is over by then
        while waiting := _work(runtime):
            if time.monotonic() >= say_at:
                notify(f"waiting for {_list(waiting, _kept_back(runtime, waiting))} to end (Ctrl+C cancels)")
                say_at = time.monotonic() + _SAY_AGAIN_S
            # A detached actor need only be ready, and its calls be sent, which is not their end: look again soon.
            leaving = any(_of_detached(one) for one in waiting)
            patience_s = max(0.0, say_at - time.monotonic())
            wait_for(waiting, len(waiting), min(patience_s, _LOOK_AGAIN_S) if leaving else patience_s)
    except KeyboardInterrupt:
        stop(runtime, [item for item in runtime.unfinished() if not item.task.runs_actors], _INTERRUPTED)


def cancel_all(runtime: Runtime, *, interrupted: bool = False) -> None:
    """Cancel what is left, silently if there is nothing; only detached actors are left alone."""
    items = runtime.unfinished()
    left = [item for item in items if not item.task.runs_actors]
    if left:
        stop(runtime, left, _INTERRUPTED if interrupted else _SHUT_DOWN)
    detached = [item for item in items if _lives_on(item)]
    if detached:
        notify(f"detached, so left alone: {_actors(detached)}")
    calls = [call for call in runtime.method_calls.unanswered() if _goes_on(call)]
    if calls:
        notify(
            f"not waited for, they go on there: {shorten([f'{one.id} ({one.name}) on {one.sent_to}' for one in calls])}"
        )
    actors = [item for item in items if item.task.runs_actors and item not in detached]
    if actors:
        notify(f"ended with the program: {_actors(actors)}")
        for item in actors:
            runtime.cancel(item.id, "its program has ended", force=True)
        wait_for(actors, len(actors), STOP_PATIENCE_S)


def stop(runtime: ControlPlane, items: Iterable[Item], why: str) -> None:
    """Cancel these and say what became of them; Ctrl+C while waiting forces."""
    chosen = [item for item in items if not item.done()]
    before = {item.id: (item.state, item.cluster) for item in chosen}
    for item in chosen:
        runtime.cancel(item.id, why, force=False)
    forced = False
    try:
        wait_for(chosen, len(chosen), STOP_PATIENCE_S)
    except KeyboardInterrupt:
        forced = True
    left = [item for item in chosen if not item.done()]
    if left:
        notify(f"{'forcing' if forced else 'still not over, forcing'}: {_list(left)}")
        for item in left:
            runtime.cancel(item.id, why, force=True)
        wait_for(left, len(left), FORCE_PATIENCE_S)
    for item in sorted(chosen, key=lambda item: item.done())[:MAX_LINES]:  # first what may still be there
        state, cluster = before[item.id]
        where = f" on {cluster}" if cluster else ""
        ended = str(item.state) if item.done() else "not known to have ended"
        notify(f"{item.id} was {state}{where}: {ended}")
    if len(chosen) > MAX_LINES:
        notify(f"and {len(chosen) - MAX_LINES} more")


def _work(runtime: Runtime) -> list[Promise]:
    """What is worth waiting for: tasks, jobs, calls, and detached actors that are still being made."""
    items = [item for item in runtime.unfinished() if not item.task.runs_actors or _is_being_left(item)]
    return [*items, *(call for call in runtime.method_calls.unanswered() if not _goes_on(call))]


def _of_detached(work: Promise) -> bool:
    item = work.actor.item if isinstance(work, CallItem) else work
    return isinstance(item, Item) and item.task.actor is not None and item.task.actor.detached


def _goes_on(call: CallItem) -> bool:
    """It may never end, and the actor answers it whether we are there or not."""
    return call.sent_to is not None and _of_detached(call)


def _is_being_left(item: Item) -> bool:
    actor = item.task.actor
    return actor is not None and actor.detached and not _lives_on(item)


def _lives_on(item: Item) -> bool:
    actor = item.task.actor
    return actor is not None and actor.detached and (actor.adopt or item.state is TaskState.RUNNING)


def _actors(items: Sequence[Item]) -> str:
    return shorten([f"{item.task.name} {item.id}{f' on {item.cluster}' if item.cluster else ''}" for item in items])


def _list(items: Sequence[Promise], why: Mapping[str, str] | None = None) -> str:
    known = why or {}
    return shorten([f"{item.id} ({item.state}{known.get(item.id, '')})" for item in items])


def _kept_back(runtime: Runtime, items: Sequence[Promise]) -> dict[str, str]:
    """Why those wait that are told of one by one and that somebody keeps from starting: only he can let them go on."""

    def look() -> dict[str, str]:
        now = runtime.clock.now()
        known = [item.id for item in items[:MAX_NAMED] if runtime.record(item.id) is not None]
        current_wait_reasons = [(one, runtime.machine.explain_wait(one, now)) for one in known]
        return {
            one: f", {why.code}: {why.sentence}" for one, why in current_wait_reasons if why and why.code in _KEPT_BACK
        }

    try:
        return runtime.call_and_wait(look)
    except SchedulerError:  # it stopped meanwhile, or a policy has a defect
        return {}
