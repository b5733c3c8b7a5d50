"""Attempt: one attempt as its cluster has it, and its fate."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.simulation.history import How, Parts

Key: TypeAlias = tuple[str, int]
_SHORT = (0.002, 0.004, 0.008, 0.02)


@dataclass(frozen=True, slots=True)
class Fate:
    """What will become of an attempt if nobody interferes."""

    runs_s: float
    how: How
    failure: FailureClass | None
    is_stubborn: bool
    """It does not end when it is politely asked to, and has to be killed."""


@dataclass(slots=True)
class Attempt:
    """It was dispatched; where on its way it is, only the cluster knows."""

    task: TaskDescription
    number: int
    fence: int
    cluster: str
    chance: Random
    fate: Fate
    ahead: str = ""
    short: bool = False
    planned: Parts = field(default_factory=dict)
    arrived: bool = False
    early: bool = False
    """It has no place yet, but waits in Ray itself: it cannot be taken back."""
    begun: bool = False
    over: bool = False
    told_start: bool = False
    started_at: float | None = None
    parts: Parts = field(default_factory=dict)
    to_cancel: bool = False
    to_recall: bool = False
    has_place: bool = False
    answer: Event | None = None
    """How it ended, or why it was not taken, once that is known over there."""
    moved: Event | None = None
    """That it took over the place of another one."""

    @property
    def key(self) -> Key:
        return self.task.id, self.number

    @property
    def is_job(self) -> bool:
        return self.task.kind == "job"


def fate_of(task: TaskDescription, chance: Random) -> Fate:
    """Most go well. The name of a function may say what it does: ``fails`` raises soon, ``runs 2.5`` takes 2.5 s."""
    code = task.function_digest or ""
    dice = 1.0 if code.startswith("runs") else 0.0 if code.startswith("fails") else chance.random()
    if dice < 0.06:
        end: tuple[How, FailureClass | None] = ("failed", FailureClass.USER)
    elif dice < 0.09:
        end = ("crashed", FailureClass.CRASH)
    elif dice < 0.095:
        end = ("failed", FailureClass.PERMANENT)
    else:
        end = ("succeeded", None)
    return Fate(_run_time(task, code, chance), *end, chance.random() < 0.2)


def _run_time(task: TaskDescription, code: str, chance: Random) -> float:
    if code.startswith("runs"):
        return float(code.split()[1])
    if code.startswith("fails"):
        return 0.1
    if code.startswith("short"):
        return chance.choice(_SHORT) if chance.random() < 0.97 else 3.0
    if task.serves:
        return chance.choice([5.0, 30.0])
    return chance.choice([0.1, 1.0, 2.0, 5.0, 10.0, 20.0])
