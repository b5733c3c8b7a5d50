"""MethodCalls: the way of actors' calls from the program's threads to the links, and of their answers back.

They are no items of the brain: where the actor is was decided once, and its calls go straight there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import CallItem
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import shut_down_error
from ray_multicluster_scheduler.control_plane.runtime.outcome import FetchValue
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult, ClusterLink

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls

_log = get_logger(__name__)


class MethodCalls:
    """All unanswered calls of one control plane. Made on its loop; `put`, `wake` and `cancel` are for any thread."""

    def __init__(
        self,
        control_plane: str,
        link: Callable[[str], ClusterLink | None],
        homes: Sequence[str],
        home_of: Callable[[str], str | None],
        on_failure: Callable[[BaseException], None],
        life: int = 0,
        fetch_value: FetchValue | None = None,
    ) -> None:
        """``on_failure`` hears of a defect in here, after which nobody can say what was sent. ``life`` counts the
        processes of a control plane whose actors outlive them. ``fetch_value`` fetches kept values."""
        self.link, self.homes, self.home_of, self._failure = link, homes, home_of, on_failure
        self.life, self.fetch_value = life, fetch_value
        self._prefix, self._numbers, self._newest = f"call-{control_plane}-", itertools.count(1), 0
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._lock = Lock()  # over the refusal and what is put while it is not there
        self._refusal: str | None = None
        self._open: dict[str, CallItem] = {}
        self._awake: deque[ActorCalls] = deque()
        self._scheduled = False

    def new_id(self) -> str:
        self._newest = number = next(self._numbers)
        return f"{self._prefix}{number}"

    def was_issued(self, call_id: object) -> bool:
        """Is this the id of a call, answered or not?"""
        if not isinstance(call_id, str) or not call_id.startswith(self._prefix):
            return False
        number = call_id.removeprefix(self._prefix)
        return number.isdecimal() and 0 < int(number) <= self._newest

    def put(self, call: CallItem) -> None:
        """Take it into its actor's queue. Raises SchedulerError after the end, and in the child of a fork."""
        if os.getpid() != self._process:
            raise shut_down_error("belongs to the process that this one was forked from")
        with self._lock:
            if self._refusal is not None:
                raise _too_late(call, self._refusal)
            self._open[call.id] = call
            call.actor.waiting.append(call)
        self.wake(call.actor)

    def note(self, call: CallItem) -> None:
        """It is open, and in no queue."""
        with self._lock:
            self._open[call.id] = call

    def wake(self, actor: ActorCalls) -> None:
        """Something changed for this actor. Many changes are one wake-up of the loop."""
        if actor.awake:
            return
        actor.awake = True
        self._awake.append(actor)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:  # the loop has ended, and with it every call was answered
                self._scheduled = False

    def unanswered(self) -> list[CallItem]:
        """Oldest first."""
        with self._lock:
            return list(self._open.values())

    def waiting_for(self, actor: ActorCalls) -> list[CallItem]:
        """On the loop: the calls of this actor that have not left, in order; other threads add to them meanwhile."""
        with self._lock:
            return list(actor.waiting)

    def find(self, call_id: str) -> CallItem | None:
        """The call, while it is not answered."""
        return self._open.get(call_id)

    def before(self, call: CallItem) -> int:
        """How many calls of the same actor were made before it and are not answered."""
        older = itertools.takewhile(lambda other: other is not call, self.unanswered())
        return sum(1 for other in older if other.actor is call.actor)

    def cancel(self, call: CallItem, *, force: bool) -> None:
        """On the loop: one that waits never leaves; of one that was sent the cluster is asked."""
        call.cancel_asked = True
        if call.outcome is not None:
            return
        if call.sent_to is None:
            self.close(call)
            call.ended(call.cancelled("the caller asked for it, before it was sent"))
            self.wake(call.actor)
        elif (link := self.link(call.sent_to)) is not None:
            link.cancel(call.id, 1, force=force)

    def answered(self, result: CallResult) -> None:
        """On the loop: the one answer to a call that was sent."""
        call = self._open.pop(result.task_id, None)
        if call is None:
            return
        actor = call.actor
        actor.unanswered -= 1
        call.ended(call.answered(result))
        if actor.waiting:
            self.wake(actor)

    def close(self, call: CallItem) -> None:
        """It is no longer open: whoever says so tells its end."""
        self._open.pop(call.id, None)
        if call.watch_arguments is not None:
            call.watch_arguments.stop()

    def end(self, why: str, error: str, sentence: str) -> None:
        """Nothing more is taken, and nothing comes back: every open call is answered."""
        with self._lock:
            self._refusal = self._refusal or why
            left = list(self._open.values())
            self._open.clear()
        for call in left:
            self.close(call)
            call.ended(call.abandoned(error, sentence))
            call.actor.waiting.clear()

    def _turn(self) -> None:
        self._scheduled = False
        for _ in range(len(self._awake)):
            actor = self._awake.popleft()
            actor.awake = False
            try:
                actor.advance()
            except Exception as error:  # noqa: BLE001 - a defect of ours: everybody is told
                _log.exception("the way of actors' calls has a defect")
                self._failure(error)
                return


def _too_late(call: CallItem, why: str) -> SchedulerError:
    """The scheduler may be used again, but not with the actors that it had."""
    item = call.actor.item
    actor = item.task.actor
    if actor is not None and actor.detached:
        fate, step = "is detached and lives on", f"find it again with get_actor({actor.public_name!r}) and call that"
    else:
        fate, step = "ended with it", "make a new actor and call that"
    return SchedulerError(
        f"{call.name} was not sent: the scheduler {why}, and actor {item.id} {fate}.",
        task_id=item.id,
        cluster=item.cluster,
        next_step=step,
    )
