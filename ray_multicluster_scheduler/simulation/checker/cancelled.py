"""cancelled_work_does_not_go_on."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.events import CancelRequested, ClusterDeclaredDead
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Complete, Dispatch, Persist
from ray_multicluster_scheduler.simulation.checker.history_index import Entry, Story
from ray_multicluster_scheduler.simulation.checker.property import Property
from ray_multicluster_scheduler.simulation.history import Began, Crashed, Fed, Line, Over

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

    def read(self, story: Story, history: Sequence[Line]) -> None:
        states: dict[str, TaskState] = {}
        asked: set[str] = set()
        ending: set[str] = set()
        alive: dict[str, set[int]] = {}
        dying: dict[str, Entry] = {}
        sent_to: dict[str, str] = {}
        declared: set[str] = set()
        late: dict[str, Entry] = {}
        told = (CancelRequested, ClusterDeclaredDead, Persist, Dispatch, CancelAttempt, Complete, Began, Over)
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
                case Began(task_id=task_id, attempt=attempt):
                    alive.setdefault(task_id, set()).add(attempt)
                    state = states.get(task_id)
                    if state is TaskState.CANCELLED and task_id in declared:
                        late[task_id] = entry
                    elif state is TaskState.CANCELLED:
                        self.accuse(entry, f"{task_id} is CANCELLED, and attempt {attempt} begins")
                case Over(task_id=task_id, attempt=attempt, how=how):
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
        self, entry: Entry, history: Sequence[Line], state: TaskState, task_id: str, ending: set[str]
    ) -> None:
        """Until the next event: the end of the attempt is asked for, or the item is over."""
        if task_id in ending:
            return  # it was asked for before, for whatever reason
        number = entry.number + 1
        while number < len(history) and not isinstance(history[number], Fed):
            instruction = getattr(history[number], "instruction", None)
            if isinstance(instruction, CancelAttempt | Complete) and instruction.task_id == task_id:
                return
            if isinstance(history[number], Crashed):
                return  # the next one sees to it
            number += 1
        self.accuse(entry, f"{task_id} is {state} and was cancelled, and nothing is done about it")
