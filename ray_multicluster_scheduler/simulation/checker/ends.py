"""every_accepted_task_reaches_exactly_one_terminal_state."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Persist
from ray_multicluster_scheduler.simulation.checker.history_index import Entry, Story
from ray_multicluster_scheduler.simulation.checker.property import Property
from ray_multicluster_scheduler.simulation.history import Crashed, Line

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

    def read(self, story: Story, history: Sequence[Line]) -> None:
        states: dict[str, TaskState] = {}
        told: dict[str, TaskState] = {}
        for entry in story.some(Persist, Complete, Crashed):
            if isinstance(entry.what, Crashed):  # whoever asks the next one is told
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
