"""Invariants of items and attempts: terminal states, one live attempt, growing fences, cancellation, nothing left, and
restart without loss. The checker tests them on the history of a simulated run."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    CancelRequested,
    ClusterDeclaredDead,
    Submitted,
    TimerFired,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    ClearTimer,
    Complete,
    Dispatch,
    Persist,
    Remember,
    RememberFleet,
    SetTimer,
)
from ray_multicluster_scheduler.simulation.checker.property import Entry, HistoryIndex, Property
from ray_multicluster_scheduler.simulation.history import (
    AttemptBegan,
    AttemptEnded,
    ControlPlaneCrashed,
    ControlPlaneRestarted,
    EventHandled,
    HistoryLine,
    InstructionIssued,
    StateDump,
)

_AT_ONCE_S = 1.0
_LEGAL_TRANSITIONS = {
    "PENDING": "PENDING QUEUED FAILED CANCELLED",
    "QUEUED": "QUEUED DISPATCHING FAILED CANCELLED",
    "DISPATCHING": "DISPATCHING RUNNING QUEUED RETRYING LOST FAILED CANCELLED",
    "RUNNING": "RUNNING PREEMPTING RETRYING LOST SUCCEEDED FAILED CANCELLED",
    "PREEMPTING": "PREEMPTING QUEUED RETRYING LOST SUCCEEDED FAILED CANCELLED",
    "RETRYING": "QUEUED FAILED CANCELLED",
    "LOST": "LOST DISPATCHING RUNNING PREEMPTING QUEUED RETRYING FAILED CANCELLED",
}


class EveryAcceptedTaskReachesExactlyOneTerminalState(Property):
    """By the persisted transitions and the Complete instructions; each transition must be legal."""

    name = "every_accepted_task_reaches_exactly_one_terminal_state"
    sentence = (
        "Every accepted item ends as SUCCEEDED, FAILED or CANCELLED, once, and its end is reported to its owner once."
    )

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        states: dict[str, TaskState] = {}
        completed: dict[str, TaskState] = {}
        for entry in index.of_types(Persist, Complete, ControlPlaneCrashed):
            if isinstance(entry.content, ControlPlaneCrashed):  # after a crash, ends are reported on request
                completed |= {task_id: state for task_id, state in states.items() if state.terminal}
            elif isinstance(entry.content, Persist):
                step = entry.content.transition
                self._check_transition(entry, states.get(step.task_id), step.state, step.task_id)
                states[step.task_id] = step.state
            else:
                self._check_complete(entry, entry.content, states, completed)
        for task_id, state in states.items():
            if not state.terminal:
                self.report(index.end, f"{task_id} stays {state} for ever")
            elif task_id not in completed:
                self.report(index.end, f"{task_id} is {state}, and its end is never reported")

    def _check_transition(self, entry: Entry, before: TaskState | None, after: TaskState, task_id: str) -> None:
        legal = after is TaskState.PENDING if before is None else after in _LEGAL_TRANSITIONS.get(before, "").split()
        if not legal:
            self.report(entry, f"{task_id} goes from {before or 'no state'} to {after}")

    def _check_complete(
        self, entry: Entry, one: Complete, states: dict[str, TaskState], completed: dict[str, TaskState]
    ) -> None:
        if one.task_id in completed:
            self.report(entry, f"{one.task_id} is completed twice")
        elif states.get(one.task_id) is not one.state:
            self.report(entry, f"{one.task_id} is completed as {one.state}, but is {states.get(one.task_id)}")
        completed[one.task_id] = one.state


class AtMostOneLiveAttempt(Property):
    """By the truth of the clusters. Exception: a lost Ray job whose owner set ``retry_lost``."""

    name = "at_most_one_live_attempt"
    sentence = "No two attempts of one item ever run at the same time, on any clusters, whatever was lost or cut."

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        may_run_twice: set[str] = set()
        running: dict[str, dict[int, str]] = {}
        for entry in index.of_types(Submitted, AttemptBegan, AttemptEnded):
            match entry.content:
                case Submitted(task=task) if task.kind == "job" and task.retry_lost:
                    may_run_twice.add(task.id)
                case AttemptBegan(task_id=task_id, attempt=attempt, cluster=cluster):
                    others = running.setdefault(task_id, {})
                    if others and task_id not in may_run_twice:
                        other, where = next(iter(others.items()))
                        self.report(
                            entry, f"attempt {attempt} of {task_id} starts on {cluster} while {other} runs on {where}"
                        )
                    others[attempt] = cluster
                case AttemptEnded(task_id=task_id, attempt=attempt):
                    running.get(task_id, {}).pop(attempt, None)


class FencesOnlyGrow(Property):
    """By the dispatches. One that a restarted control plane sends ``again`` keeps its attempt number and fence."""

    name = "fences_only_grow"
    sentence = "Each dispatch carries a larger fence than every one before it, and an item's attempts count 1, 2, 3, …"

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        last, attempts, fences = 0, dict[str, int](), dict[int, tuple[str, int]]()
        for entry in index.of_types(Dispatch):
            dispatch: Dispatch = entry.content
            key = (dispatch.task_id, dispatch.attempt)
            if fences.setdefault(dispatch.fence, key) != key or (dispatch.fence <= last and not dispatch.again):
                self.report(entry, f"{dispatch.task_id} is dispatched with fence {dispatch.fence} after {last}")
            last = max(last, dispatch.fence)
            before = attempts.get(dispatch.task_id, 0)
            if dispatch.attempt != before + 1 and not (dispatch.again and dispatch.attempt == before):
                self.report(entry, f"attempt {dispatch.attempt} of {dispatch.task_id} follows {before}")
            attempts[dispatch.task_id] = dispatch.attempt


class CancelledWorkDoesNotGoOn(Property):
    """After a cancel no attempt is dispatched, the live one is cancelled in the same answer, and the item is completed
    as CANCELLED only when nothing of it runs.

    Two exceptions: nodes of a cluster that died may run on for ``node_grace_s``; and an attempt on its way to a cluster
    that was declared dead by mistake may still start there, and is ended then.
    """

    name = "cancelled_work_does_not_go_on"
    sentence = (
        "After a cancel no new attempt starts, the running one is ended, and the item becomes CANCELLED after its end. "
        "(A dispatch on its way to a cluster that was declared dead by mistake may still start there, and is ended at "
        "once.)"
    )

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[str, TaskState] = {}
        self._requested: set[str] = set()
        self._ending: set[str] = set()
        self._running: dict[str, set[int]] = {}
        self._sent_to: dict[str, str] = {}
        self._declared_dead: set[str] = set()
        self._completed_early: dict[str, Entry] = {}
        self._started_late: dict[str, Entry] = {}

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        kinds = (CancelRequested, ClusterDeclaredDead, Persist, Dispatch, CancelAttempt, Complete)
        for entry in index.of_types(*kinds, AttemptBegan, AttemptEnded):
            match entry.content:
                case CancelRequested(task_id=task_id):
                    self._cancel_requested(entry, history, task_id)
                case Persist(transition=step):
                    self._states[step.task_id] = step.state
                case CancelAttempt(task_id=task_id):
                    self._ending.add(task_id)
                case ClusterDeclaredDead(cluster=cluster):
                    self._declared_dead.update(one for one, where in self._sent_to.items() if where == cluster)
                case Dispatch():
                    self._dispatched(entry, entry.content)
                case AttemptBegan():
                    self._began(entry, entry.content)
                case AttemptEnded():
                    self._ended(entry, entry.content, index.settings.node_grace_s)
                case Complete(task_id=task_id, state=TaskState.CANCELLED) if self._running.get(task_id):
                    self._completed_early[task_id] = entry
        for task_id, entry in self._completed_early.items():
            self.report(entry, f"{task_id} is completed as CANCELLED while it runs")
        for task_id, entry in self._started_late.items():
            self.report(entry, f"{task_id} is CANCELLED, starts on a cluster that was declared dead, and is not ended")

    def _cancel_requested(self, entry: Entry, history: Sequence[HistoryLine], task_id: str) -> None:
        state = self._states.get(task_id)
        if state is not None and not state.terminal:
            self._check_answer(entry, history, state, task_id, self._ending)
            self._requested.add(task_id)

    def _dispatched(self, entry: Entry, dispatch: Dispatch) -> None:
        task_id = dispatch.task_id
        self._ending.discard(task_id)
        self._declared_dead.discard(task_id)
        self._sent_to[task_id] = dispatch.cluster
        if task_id in self._requested and not dispatch.again:
            self.report(entry, f"{task_id} was cancelled, and is sent to {dispatch.cluster}")

    def _began(self, entry: Entry, began: AttemptBegan) -> None:
        task_id = began.task_id
        self._running.setdefault(task_id, set()).add(began.attempt)
        if self._states.get(task_id) is not TaskState.CANCELLED:
            return
        if task_id in self._declared_dead:
            self._started_late[task_id] = entry
        else:
            self.report(entry, f"{task_id} is CANCELLED, and attempt {began.attempt} starts")

    def _ended(self, entry: Entry, ended: AttemptEnded, node_grace_s: float) -> None:
        task_id = ended.task_id
        self._running.get(task_id, set()).discard(ended.attempt)
        late, early = self._started_late.get(task_id), self._completed_early.get(task_id)
        if late is not None and ended.how in ("cancelled", "died") and entry.at <= late.at + _AT_ONCE_S:
            del self._started_late[task_id]
        if early is not None and ended.how == "died" and entry.at <= early.at + node_grace_s:
            del self._completed_early[task_id]

    def _check_answer(
        self, entry: Entry, history: Sequence[HistoryLine], state: TaskState, task_id: str, ending: set[str]
    ) -> None:
        """The same answer must cancel the attempt or complete the item, unless the control plane crashes."""
        if task_id in ending:
            return  # it was cancelled before, for another reason
        for number in range(entry.line + 1, len(history)):
            line = history[number]
            if isinstance(line, EventHandled):
                break
            instruction = getattr(line, "instruction", None)
            if isinstance(instruction, CancelAttempt | Complete) and instruction.task_id == task_id:
                return
            if isinstance(line, ControlPlaneCrashed):
                return
        self.report(entry, f"{task_id} is {state} and was cancelled, but neither ended nor completed")


class NothingIsLeft(Property):
    """At the end of a history in which every item has ended, and in every state dump without unfinished items."""

    name = "nothing_is_left"
    sentence = (
        "When all items have ended, no reservation, timer or record of them is left, in the scheduler or on clusters."
    )

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        for entry in index.of_types(StateDump):
            if entry.content.left:
                self.report(entry, f"all items have ended, but left over: {', '.join(entry.content.left[:5])}")
        states = {step.task_id: step.state for step in (one.content.transition for one in index.of_types(Persist))}
        if not all(state.terminal for state in states.values()):
            return  # another property reports unfinished items
        for key in self._timers(index):
            self.report(index.end, f"the timer {key} is still set")
        running = {(one.content.task_id, one.content.attempt) for one in index.of_types(AttemptBegan)}
        running -= {(one.content.task_id, one.content.attempt) for one in index.of_types(AttemptEnded)}
        for task_id, attempt in sorted(running):
            self.report(index.end, f"attempt {attempt} of {task_id} runs on for ever")

    def _timers(self, index: HistoryIndex) -> list[str]:
        timers: dict[str, None] = {}
        for entry in index.of_types(SetTimer, ClearTimer, TimerFired, ControlPlaneCrashed):
            match entry.content:
                case SetTimer(key=key):
                    timers[key] = None
                case ClearTimer(key=key) | TimerFired(key=key):
                    timers.pop(key, None)
                case _:
                    timers.clear()
        return list(timers)


class RebuildEqualsLive(Property):
    """Each answer persists all rows before its first other effect, and no state dump lists a difference between the
    live machine and one rebuilt from the rows."""

    name = "rebuild_equals_live"
    sentence = "A control plane that is rebuilt from what it persisted, at any moment, equals the one that was lost."

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        for entry in index.of_types(StateDump):
            for difference in entry.content.unequal:
                self.report(entry, f"a machine rebuilt from the rows would differ: {difference}")
        effects_began = False
        for entry, line in zip(index.entries, history, strict=True):
            match line:
                case InstructionIssued(instruction=Persist() | Remember() | RememberFleet()):
                    if effects_began:
                        self.report(entry, "something is persisted after an effect of the same answer")
                case InstructionIssued():
                    effects_began = True
                case EventHandled() | ControlPlaneCrashed() | ControlPlaneRestarted():
                    effects_began = False
                case _:
                    pass
