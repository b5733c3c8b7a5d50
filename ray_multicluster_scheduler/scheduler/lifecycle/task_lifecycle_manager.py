"""TaskLifecycleManager: feeds events to the machine and carries out its instructions.

Only it touches the machine, on one event loop. Events may be posted from any thread and are handled in order. What an
instruction starts (a dispatch, a snapshot) comes back as an event.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.lifecycle.events import Continued, Event, TimerFired
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    CheckDashboard,
    ClearTimer,
    Complete,
    Continue,
    Dispatch,
    Instruction,
    Persist,
    PreemptAttempt,
    Publish,
    RecallAttempt,
    RefreshSnapshot,
    Remember,
    RememberFleet,
    SetTimer,
    StartAttempt,
    Transition,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import TransitionLog

_log = get_logger(__name__)
_EVENTS_PER_TURN = 500
_PAUSE_AFTER, _PAUSE_S = 32, 0.01
_ABOUT_ATTEMPTS = (CancelAttempt, PreemptAttempt, StartAttempt, RecallAttempt, AdoptAttempt)


class _Barrier(NamedTuple):
    """A callback in the event queue: runs when all earlier events were handled."""

    action: Callable[[], object]


class InstructionExecutor(Protocol):
    """Carries out instructions that reach clusters. Every method returns at once; answers come as events."""

    def dispatch(self, orders: list[Dispatch]) -> None: ...

    def start(self, order: StartAttempt) -> None: ...

    def recall(self, order: RecallAttempt) -> None: ...

    def cancel(self, order: CancelAttempt) -> None: ...

    def preempt(self, order: PreemptAttempt) -> None: ...

    def adopt(self, order: AdoptAttempt) -> None: ...

    def refresh(self, cluster: str) -> None: ...

    def check_dashboard(self, cluster: str) -> None: ...


class LifecycleListener(Protocol):
    """Receives transitions and completions (the handles of the program's items)."""

    def transition(self, transition: Transition) -> None: ...

    def completed(self, completion: Complete) -> None: ...


class TaskLifecycleManager:
    """Drives one machine on one event loop."""

    def __init__(
        self, machine: SchedulerMachine, log: TransitionLog, clock: Clock, listener: LifecycleListener
    ) -> None:
        self.machine, self.log = machine, log
        self._clock, self._listener = clock, listener
        self._loop = asyncio.get_running_loop()
        self._executor: InstructionExecutor | None = None
        self._inbox: deque[Event | _Barrier] = deque()
        self._scheduled = False
        self._caught_up = threading.Event()
        self._since_pause = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failure: Callable[[BaseException], None] | None = None
        self._broken = False
        self._dispatches: list[Dispatch] = []
        self._internal_handlers: dict[type[Instruction], Callable[[Any], object]] = {
            Remember: lambda one: log.persist_item(one.task_id),
            RememberFleet: lambda _: log.persist_fleet(),
            SetTimer: self._set_timer,
            ClearTimer: self._clear_timer,
            Continue: lambda _: self.post(Continued()),
            RefreshSnapshot: self._pass_to_executor,
            CheckDashboard: self._pass_to_executor,
        }
        """Instructions without a visible effect: carried out at once."""
        self._effect_handlers: dict[type[Instruction], Callable[[Any], object]] = {
            Publish: self._publish,
            Complete: listener.completed,
            CancelAttempt: self._pass_to_executor,
            PreemptAttempt: self._pass_to_executor,
            StartAttempt: self._pass_to_executor,
            RecallAttempt: self._pass_to_executor,
            AdoptAttempt: self._pass_to_executor,
        }

    def connect_executor(self, executor: InstructionExecutor, on_failure: Callable[[BaseException], None]) -> None:
        """Connect the executor; ``on_failure`` is called on a defect in the machine, after which it is not driven."""
        self._executor, self._failure = executor, on_failure

    def post(self, event: Event) -> None:
        """Queue an event, from any thread. Ignored after a defect."""
        if self._broken:
            return
        self._inbox.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._process_inbox)

    def throttle(self) -> None:
        """Call it after each event that a thread posts in bulk, not on the loop: it pauses briefly while many events
        are unhandled, so that the loop gets the interpreter. It is a pause, not a limit on the number of unhandled
        events."""
        self._since_pause += 1
        if self._since_pause < _PAUSE_AFTER or len(self._inbox) < _PAUSE_AFTER or self._broken:
            return
        self._since_pause = 0
        self._caught_up.clear()
        if self._inbox:  # else the turn that sets the event may be over
            self._caught_up.wait(_PAUSE_S)

    @property
    def unhandled(self) -> int:
        """The greatest number of events that were posted and may not have been handled completely."""
        return len(self._inbox) + 1

    async def caught_up(self) -> None:
        """On the loop: wait until all events posted so far were handled, and the scheduling pass that follows them."""
        while self._inbox and not self._broken:
            await asyncio.sleep(0)

    def when_durable(self, action: Callable[[], object]) -> None:
        """On the loop: run this when everything posted so far was handled and its results are durable."""
        if self._broken:
            return
        self._inbox.append(_Barrier(action))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._process_inbox)

    def halt(self) -> None:
        """Stop without notifications: the next process continues from the durable rows."""
        self._broken = True
        self.stop_timers()

    def stop_timers(self) -> None:
        """Cancel all timers, when the control plane ends."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def _process_inbox(self) -> None:
        """Handle a bounded number of queued events, then yield to the loop."""
        self._scheduled = False
        if self._broken:
            return
        if not self.run_guarded(self._handle_batch):
            return
        if not self._inbox:
            self._caught_up.set()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._process_inbox)

    def _handle_batch(self) -> None:
        for _ in range(min(len(self._inbox), _EVENTS_PER_TURN)):
            event = self._inbox.popleft()
            if isinstance(event, _Barrier):
                self.log.after_durable(event.action)
                continue
            instructions = self.machine.handle(event, self._clock.now())
            if instructions:
                self._persist(instructions)
        self.log.after_durable(self._send_dispatches)
        self.log.flush()

    def run_guarded(self, action: Callable[[], object]) -> bool:
        """On the loop: run this. On an exception, a defect of ours, stop the machine, report it and return False."""
        if self._broken:
            return False
        try:
            action()
        except Exception as error:  # noqa: BLE001 - see above
            _log.exception("internal error: the scheduler stops (please report this traceback)")
            self.fail(error)
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Stop the machine: the control plane cannot continue."""
        self._broken = True
        if self._failure is not None:
            self._failure(error)

    def _persist(self, instructions: list[Instruction]) -> None:
        """Write what must be durable; visible effects wait for that."""
        entries: list[Persist] = []
        seen: list[Instruction] = []
        for instruction in instructions:
            if type(instruction) is Persist:
                entries.append(instruction)
            elif (note := self._internal_handlers.get(type(instruction))) is not None:
                note(instruction)
            else:
                seen.append(instruction)
                if type(instruction) is Complete:
                    self.log.record_completion(instruction)
        if entries:
            self.log.append(entries)
        if seen:
            self.log.after_durable(lambda: self._carry_out(seen))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if type(instruction) is Dispatch:
                self._dispatches.append(instruction)
                continue
            if self._dispatches and isinstance(instruction, _ABOUT_ATTEMPTS):
                # An attempt that was ordered in this very turn must reach the executor before anything else about it.
                self._send_dispatches()
            self._effect_handlers[type(instruction)](instruction)

    def _send_dispatches(self) -> None:
        if self._dispatches and self._executor is not None:
            orders, self._dispatches = self._dispatches, []
            self._executor.dispatch(orders)

    def _pass_to_executor(self, instruction: Instruction) -> None:
        if self._executor is None:
            return
        match instruction:
            case CancelAttempt():
                self._executor.cancel(instruction)
            case PreemptAttempt():
                self._executor.preempt(instruction)
            case StartAttempt():
                self._executor.start(instruction)
            case RecallAttempt():
                self._executor.recall(instruction)
            case AdoptAttempt():
                self._executor.adopt(instruction)
            case RefreshSnapshot(cluster):
                self._executor.refresh(cluster)
            case CheckDashboard(cluster):
                self._executor.check_dashboard(cluster)

    def _publish(self, instruction: Publish) -> None:
        transition = instruction.transition
        if _log.isEnabledFor(logging.INFO):
            _log_transition(transition)
        self._listener.transition(transition)

    def _set_timer(self, timer: SetTimer) -> None:
        before = self._timers.pop(timer.key, None)
        if before is not None:
            before.cancel()
        delay = max(0.0, timer.at - self._clock.now())
        self._timers[timer.key] = self._loop.call_later(delay, self._fire, timer.key)

    def _clear_timer(self, timer: ClearTimer) -> None:
        handle = self._timers.pop(timer.key, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        self.post(TimerFired(key))


def _log_transition(transition: Transition) -> None:
    _log.info(
        "%s %s: %s",
        transition.task_id,
        transition.state,
        transition.sentence,
        extra={
            "id": transition.task_id,
            "attempt": transition.attempt,
            "cluster": transition.cluster,
            "reason": transition.code,
        },
    )
