"""nothing_is_left, and rebuild_equals_live."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.scheduler.lifecycle.events import TimerFired
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    ClearTimer,
    Persist,
    Remember,
    RememberFleet,
    SetTimer,
)
from ray_multicluster_scheduler.simulation.checker.history_index import Story
from ray_multicluster_scheduler.simulation.checker.property import Property
from ray_multicluster_scheduler.simulation.history import Began, Crashed, Fed, Line, Looked, Over, Restarted, Told


class NothingIsLeft(Property):
    """At the end of a history in which every item is over; and whenever the machine itself, asked while nothing was
    unfinished, named something that it holds."""

    name = "nothing_is_left"
    sentence = "When all is done, no reservation, timer, waiter or memory of it is left, here or over there."

    def read(self, story: Story, history: Sequence[Line]) -> None:
        for entry in story.some(Looked):
            if entry.what.left:
                self.accuse(entry, f"nothing is unfinished, and there is still: {', '.join(entry.what.left[:5])}")
        states = {step.task_id: step.state for step in (entry.what.transition for entry in story.some(Persist))}
        if not all(state.terminal for state in states.values()):
            return  # not all is done; that is another property's affair
        for key in self._timers(story):
            self.accuse(story.end, f"the timer {key} is set, and nobody waits for it")
        running = {(entry.what.task_id, entry.what.attempt) for entry in story.some(Began)}
        running -= {(entry.what.task_id, entry.what.attempt) for entry in story.some(Over)}
        for task_id, attempt in sorted(running):
            self.accuse(story.end, f"attempt {attempt} of {task_id} runs on for ever")

    def _timers(self, story: Story) -> list[str]:
        timers: dict[str, None] = {}
        for entry in story.some(SetTimer, ClearTimer, TimerFired, Crashed):
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

    def read(self, story: Story, history: Sequence[Line]) -> None:
        for entry in story.some(Looked):
            for difference in entry.what.unequal:
                self.accuse(entry, f"rebuilt from its rows it would differ: {difference}")
        outward = False
        for number, line in enumerate(history):
            match line:
                case Told(instruction=Persist() | Remember() | RememberFleet()) if outward:
                    self.accuse(story.entries[number], "something is persisted after an effect of the same answer")
                case Told(instruction=Persist() | Remember() | RememberFleet()):
                    pass
                case Told():
                    outward = True
                case Fed() | Crashed() | Restarted():
                    outward = False
                case _:
                    pass
