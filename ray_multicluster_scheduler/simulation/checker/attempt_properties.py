"""Properties of the life of items and attempts: terminal states, one live attempt, fences, cancellation, leftovers."""

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
from ray_multicluster_scheduler.simulation.checker.property import Entry, Property, Story
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

_AFTER = {
    "PENDING": "PENDING QUEUED FAILED CANCELLED",
    "QUEUED": "QUEUED DISPATCHING FAILED CANCELLED",
    "DISPATCHING": "DISPATCHING RUNNING QUEUED RETRYING LOST FAILED CANCELLED",
    "RUNNING": "RUNNING RETRYING LOST SUCCEEDED FAILED CANCELLED",
    "RETRYING": "QUEUED FAILED CANCELLED",
    "LOST": "LOST DISPATCHING RUNNING QUEUED RETRYING FAILED CANCELLED",
}


class EveryAcceptedTaskReachesExactlyOneTerminalState(Property):
    """By the rows that were persisted and by what its owner was told; each state legally follows the one before."""

    name = "every_accepted_task_reaches_exactly_one_terminal_state"
    sentence = "Every accepted item ends as SUCCEEDED, FAILED or CANCELLED, once, and its owner is told that once."

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        states: dict[str, TaskState] = {}
        told: dict[str, TaskState] = {}
        for entry in story.some(Persist, Complete, ControlPlaneCrashed):
            if isinstance(entry.what, ControlPlaneCrashed):  # whoever asks the next one is told
                told |= {task_id: state for task_id, state in states.items() if state.terminal}
            elif isinstance(entry.what, Persist):
                step = entry.what.transition
                self._step(entry, states.get(step.task_id), step.state, step.task_id)
                states[step.task_id] = step.state
            else:
                self._told(entry, entry.what, states, told)
        for task_id, state in states.items():
            if not state.terminal:
                self.accuse(story.end, f"{task_id} is {state} for ever")
            elif task_id not in told:
                self.accuse(story.end, f"{task_id} is {state}, and its owner is never told")

    def _step(self, entry: Entry, before: TaskState | None, after: TaskState, task_id: str) -> None:
        legal = after is TaskState.PENDING if before is None else after in _AFTER.get(before, "").split()
        if not legal:
            self.accuse(entry, f"{task_id} goes from {before or 'nothing'} to {after}")

    def _told(self, entry: Entry, one: Complete, states: dict[str, TaskState], told: dict[str, TaskState]) -> None:
        if one.task_id in told:
            self.accuse(entry, f"{one.task_id} is completed twice")
        elif states.get(one.task_id) is not one.state:
            self.accuse(entry, f"{one.task_id} is completed as {one.state}, but is {states.get(one.task_id)}")
        told[one.task_id] = one.state


class AtMostOneLiveAttempt(Property):
    """By the truth of the clusters, leases included. A lost Ray job whose owner said ``retry_lost`` is the exception
    that its owner asked for."""

    name = "at_most_one_live_attempt"
    sentence = "At no moment do two attempts of one item run, on whatever clusters, whatever was lost or cut."

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        may_run_twice: set[str] = set()
        alive: dict[str, dict[int, str]] = {}
        for entry in story.some(Submitted, AttemptBegan, AttemptEnded):
            match entry.what:
                case Submitted(task=task) if task.kind == "job" and task.retry_lost:
                    may_run_twice.add(task.id)
                case AttemptBegan(task_id=task_id, attempt=attempt, cluster=cluster):
                    others = alive.setdefault(task_id, {})
                    if others and task_id not in may_run_twice:
                        first, where = next(iter(others.items()))
                        self.accuse(
                            entry,
                            f"attempt {attempt} of {task_id} begins on {cluster}, and attempt {first} runs on {where}",
                        )
                    others[attempt] = cluster
                case AttemptEnded(task_id=task_id, attempt=attempt):
                    alive.get(task_id, {}).pop(attempt, None)


class FencesOnlyGrow(Property):
    """By what is dispatched; and no attempt number is used twice or left out. What a control plane that came back sends
    ``again`` keeps its number and its fence, which nobody else has."""

    name = "fences_only_grow"
    sentence = "Each dispatch carries a larger fence than every one before it, and an item's attempts count 1, 2, 3, …"

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        last, attempts, fences = 0, dict[str, int](), dict[int, tuple[str, int]]()
        for entry in story.some(Dispatch):
            order: Dispatch = entry.what
            key = (order.task_id, order.attempt)
            if fences.setdefault(order.fence, key) != key or (order.fence <= last and not order.again):
                self.accuse(entry, f"{order.task_id} is dispatched with fence {order.fence} after {last}")
            last = max(last, order.fence)
            before = attempts.get(order.task_id, 0)
            if order.attempt != before + 1 and not (order.again and order.attempt == before):
                self.accuse(entry, f"attempt {order.attempt} of {order.task_id} follows {before}")
            attempts[order.task_id] = order.attempt


_AT_ONCE_S = 1.0


class CancelledWorkDoesNotGoOn(Property):
    """Once somebody asked for its end: no further attempt is sent, the live one is asked to end in the same answer, and
    its owner is told that it was cancelled only when nothing of it runs; but for a cluster that died, some of whose
    nodes may go on for ``node_grace_s``, and for one that was declared dead and is not: what was on its way there may
    still arrive, and is ended then."""

    name = "cancelled_work_does_not_go_on"
    sentence = (
        "After a cancel no new attempt begins, the one that runs is ended, and `cancelled` is said after its end. "
        "(What was on its way to a cluster that somebody declared dead, and that is not, may still begin there, and is "
        "ended at once.)"
    )

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        states: dict[str, TaskState] = {}
        asked: set[str] = set()
        ending: set[str] = set()
        alive: dict[str, set[int]] = {}
        dying: dict[str, Entry] = {}
        sent_to: dict[str, str] = {}
        declared: set[str] = set()
        late: dict[str, Entry] = {}
        told = (
            CancelRequested,
            ClusterDeclaredDead,
            Persist,
            Dispatch,
            CancelAttempt,
            Complete,
            AttemptBegan,
            AttemptEnded,
        )
        for entry in story.some(*told):
            match entry.what:
                case CancelRequested(task_id=task_id):
                    state = states.get(task_id)
                    if state is not None and not state.terminal:
                        self._must_answer(entry, history, state, task_id, ending)
                        asked.add(task_id)
                case Persist(transition=step):
                    states[step.task_id] = step.state
                case CancelAttempt(task_id=task_id):
                    ending.add(task_id)
                case ClusterDeclaredDead(cluster=cluster):
                    declared.update(task_id for task_id, where in sent_to.items() if where == cluster)
                case Dispatch(task_id=task_id, again=again):
                    ending.discard(task_id)
                    declared.discard(task_id)
                    sent_to[task_id] = entry.what.cluster
                    if task_id in asked and not again:
                        self.accuse(entry, f"{task_id} was cancelled, and is sent to {entry.what.cluster}")
                case AttemptBegan(task_id=task_id, attempt=attempt):
                    alive.setdefault(task_id, set()).add(attempt)
                    state = states.get(task_id)
                    if state is TaskState.CANCELLED and task_id in declared:
                        late[task_id] = entry
                    elif state is TaskState.CANCELLED:
                        self.accuse(entry, f"{task_id} is CANCELLED, and attempt {attempt} begins")
                case AttemptEnded(task_id=task_id, attempt=attempt, how=how):
                    alive.get(task_id, set()).discard(attempt)
                    if task_id in late and how in ("cancelled", "died") and entry.at <= late[task_id].at + _AT_ONCE_S:
                        del late[task_id]
                    said = dying.get(task_id)
                    if how == "died" and said is not None and entry.at <= said.at + story.settings.node_grace_s:
                        del dying[task_id]
                case Complete(task_id=task_id, state=TaskState.CANCELLED) if alive.get(task_id):
                    dying[task_id] = entry
        for task_id, entry in dying.items():
            self.accuse(entry, f"{task_id} is said to be cancelled, and runs")
        for task_id, entry in late.items():
            self.accuse(entry, f"{task_id} is CANCELLED, begins where all was declared dead, and is not ended")

    def _must_answer(
        self, entry: Entry, history: Sequence[HistoryLine], state: TaskState, task_id: str, ending: set[str]
    ) -> None:
        """Until the next event: the end of the attempt is asked for, or the item is over."""
        if task_id in ending:
            return  # it was asked for before, for whatever reason
        number = entry.number + 1
        while number < len(history) and not isinstance(history[number], EventHandled):
            instruction = getattr(history[number], "instruction", None)
            if isinstance(instruction, CancelAttempt | Complete) and instruction.task_id == task_id:
                return
            if isinstance(history[number], ControlPlaneCrashed):
                return  # the next one sees to it
            number += 1
        self.accuse(entry, f"{task_id} is {state} and was cancelled, and nothing is done about it")


class NothingIsLeft(Property):
    """At the end of a history in which every item is over; and whenever the machine itself, asked while nothing was
    unfinished, named something that it holds."""

    name = "nothing_is_left"
    sentence = "When all is done, no reservation, timer, waiter or memory of it is left, here or over there."

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        for entry in story.some(StateDump):
            if entry.what.left:
                self.accuse(entry, f"nothing is unfinished, and there is still: {', '.join(entry.what.left[:5])}")
        states = {step.task_id: step.state for step in (entry.what.transition for entry in story.some(Persist))}
        if not all(state.terminal for state in states.values()):
            return  # not all is done; that is another property's affair
        for key in self._timers(story):
            self.accuse(story.end, f"the timer {key} is set, and nobody waits for it")
        running = {(entry.what.task_id, entry.what.attempt) for entry in story.some(AttemptBegan)}
        running -= {(entry.what.task_id, entry.what.attempt) for entry in story.some(AttemptEnded)}
        for task_id, attempt in sorted(running):
            self.accuse(story.end, f"attempt {attempt} of {task_id} runs on for ever")

    def _timers(self, story: Story) -> list[str]:
        timers: dict[str, None] = {}
        for entry in story.some(SetTimer, ClearTimer, TimerFired, ControlPlaneCrashed):
            match entry.what:
                case SetTimer(key=key):
                    timers[key] = None
                case ClearTimer(key=key) | TimerFired(key=key):
                    timers.pop(key, None)
                case _:
                    timers.clear()
        return list(timers)


class RebuildEqualsLive(Property):
    """What must be durable is told before anything that follows from it; and wherever a machine was rebuilt from the
    rows of a history, it is the live one, less soft state."""

    name = "rebuild_equals_live"
    sentence = "A control plane that is rebuilt from what it persisted, at any moment, is the one that was lost."

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        for entry in story.some(StateDump):
            for difference in entry.what.unequal:
                self.accuse(entry, f"rebuilt from its rows it would differ: {difference}")
        outward = False
        for number, line in enumerate(history):
            match line:
                case InstructionIssued(instruction=Persist() | Remember() | RememberFleet()) if outward:
                    self.accuse(story.entries[number], "something is persisted after an effect of the same answer")
                case InstructionIssued(instruction=Persist() | Remember() | RememberFleet()):
                    pass
                case InstructionIssued():
                    outward = True
                case EventHandled() | ControlPlaneCrashed() | ControlPlaneRestarted():
                    outward = False
                case _:
                    pass
