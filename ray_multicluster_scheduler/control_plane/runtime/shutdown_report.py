"""Ends the work of a program at its shutdown: waits for it or cancels it, and prints notices about it on stderr.

:meth:`Runtime.shutdown` calls :func:`drain` and :func:`cancel_all`; the client of a service calls :func:`stop`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.notices import MAX_LINES, MAX_NAMED, notify, shorten
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import CallItem
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise, wait_for
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.policy import reasons

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

_NOTICE_INTERVAL_S = 10.0
_POLL_INTERVAL_S = 0.1
_FIRST_NOTICE_S = 0.2
CANCEL_TIMEOUT_S = 15.0
FORCE_TIMEOUT_S = 5.0
_HELD_CODES = frozenset({codes.HELD, reasons.OWNER_PAUSED, reasons.QUEUE_PAUSED})
_INTERRUPTED = "the program that submitted it was interrupted"
_SHUT_DOWN = "the scheduler was shut down"


def drain(runtime: Runtime) -> None:
    """Wait for all items and calls, except what was cancelled, running actors and gangs, which end with the program or
    outlive it, and calls that were sent to detached actors, which continue without the program. Ctrl+C cancels the rest
    instead."""
    try:
        notice_at = time.monotonic() + _FIRST_NOTICE_S
        while waiting := _work(runtime):
            if time.monotonic() >= notice_at:
                notify(f"waiting for {_list(waiting, _held_reasons(runtime, waiting))} to end (Ctrl+C cancels)")
                notice_at = time.monotonic() + _NOTICE_INTERVAL_S
            # A detached actor must only become ready, and its calls be sent, which no watcher reports: poll.
            polling = any(_of_detached(one) for one in waiting)
            timeout_s = max(0.0, notice_at - time.monotonic())
            wait_for(waiting, len(waiting), min(timeout_s, _POLL_INTERVAL_S) if polling else timeout_s)
    except KeyboardInterrupt:
        stop(runtime, [item for item in runtime.unfinished() if not item.task.runs_actors], _INTERRUPTED)


def cancel_all(runtime: Runtime, *, interrupted: bool = False) -> None:
    """Cancel all unfinished items except detached actors, and report it. Agents end what was cancelled before."""
    unfinished = runtime.unfinished()
    cancelled = [item for item in unfinished if item.cancelling]
    if not wait_for(cancelled, len(cancelled), _FIRST_NOTICE_S):  # most are over by then
        notify(f"cancelled, so not waited for: {_list([item for item in cancelled if not item.done()])}")
    items = [item for item in unfinished if not item.cancelling]
    left = [item for item in items if not item.task.runs_actors]
    if left:
        stop(runtime, left, _INTERRUPTED if interrupted else _SHUT_DOWN)
    detached = [item for item in items if _continues_without_us(item)]
    if detached:
        notify(f"detached, so left alone: {_actors(detached)}")
    calls = [call for call in runtime.method_calls.unanswered() if _call_continues(call)]
    if calls:
        sent = [f"{one.id} ({one.name}) on {one.sent_to}" for one in calls]
        notify(f"sent to detached actors, so not waited for: {shorten(sent)}")
    actors = [item for item in items if item.task.runs_actors and item not in detached]
    if actors:
        made = [item for item in actors if not item.task.connects_only]  # the others are relays of ours
        if made:
            notify(f"ended with the program: {_actors(made)}")
        for item in actors:
            runtime.cancel(item.id, "its program has ended", force=True)
        wait_for(actors, len(actors), CANCEL_TIMEOUT_S)


def stop(runtime: ControlPlane, items: Iterable[Item], why: str) -> None:
    """Cancel these and report how each ended; Ctrl+C while waiting forces."""
    chosen = [item for item in items if not item.done()]
    before = {item.id: (item.state, item.cluster) for item in chosen}
    for item in chosen:
        runtime.cancel(item.id, why, force=False)
    forced = False
    try:
        wait_for(chosen, len(chosen), CANCEL_TIMEOUT_S)
    except KeyboardInterrupt:
        forced = True
    left = [item for item in chosen if not item.done()]
    if left:
        notify(f"{'forcing' if forced else 'still unfinished, forcing'}: {_list(left)}")
        for item in left:
            runtime.cancel(item.id, why, force=True)
        wait_for(left, len(left), FORCE_TIMEOUT_S)
    for item in sorted(chosen, key=lambda item: item.done())[:MAX_LINES]:  # unfinished ones first
        state, cluster = before[item.id]
        where = f" on {cluster}" if cluster else ""
        ended = str(item.state) if item.done() else "not known to have ended"
        notify(f"{item.id} was {state}{where}: {ended}")
    if len(chosen) > MAX_LINES:
        notify(f"and {len(chosen) - MAX_LINES} more")


def _work(runtime: Runtime) -> list[Promise]:
    """What drain waits for: tasks, jobs, calls, and detached actors that are not running yet; nothing cancelled."""
    items = [
        item
        for item in runtime.unfinished()
        if not item.cancelling
        and (not item.task.runs_actors or (_of_detached(item) and not _continues_without_us(item)))
    ]
    calls = [call for call in runtime.method_calls.unanswered() if not (call.cancel_asked or _call_continues(call))]
    return [*items, *calls]


def _of_detached(work: Promise) -> bool:
    item = work.actor.item if isinstance(work, CallItem) else work
    return isinstance(item, Item) and item.task.actor is not None and item.task.actor.detached


def _call_continues(call: CallItem) -> bool:
    """Whether it was sent to a detached actor: it runs without us, and may never end."""
    return call.sent_to is not None and _of_detached(call)


def _continues_without_us(item: Item) -> bool:
    actor = item.task.actor
    return actor is not None and actor.detached and (actor.adopt or item.state is TaskState.RUNNING)


def _actors(items: Sequence[Item]) -> str:
    return shorten([f"{item.task.name} {item.id}{f' on {item.cluster}' if item.cluster else ''}" for item in items])


def _list(items: Sequence[Promise], why: Mapping[str, str] | None = None) -> str:
    known = why or {}
    return shorten([f"{item.id} ({item.state}{known.get(item.id, '')})" for item in items])


def _held_reasons(runtime: Runtime, items: Sequence[Promise]) -> dict[str, str]:
    """By id, why the first items wait if an operator keeps them from starting: only the operator can release them."""

    def reasons_now() -> dict[str, str]:
        now = runtime.clock.now()
        known = [item.id for item in items[:MAX_NAMED] if runtime.record(item.id) is not None]
        found = [(one, runtime.machine.explain_wait(one, now)) for one in known]
        return {one: f", {why.code}: {why.sentence}" for one, why in found if why and why.code in _HELD_CODES}

    try:
        return runtime.call_and_wait(reasons_now)
    except SchedulerError:  # the runtime has stopped, or a policy has a defect
        return {}
