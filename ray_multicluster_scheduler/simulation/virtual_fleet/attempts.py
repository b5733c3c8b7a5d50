"""Attempt: one try at running an item, as the cluster that has it knows it."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.model.resources import ResourceShape, shape_of
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from ray_multicluster_scheduler.simulation.virtual_fleet.node_allocation import Parts


class Work:
    """An item in a run: what it is, how long it takes, and what was seen of it."""

    __slots__ = ("begun_at", "fails", "losses", "run_s", "shape", "task")

    def __init__(self, task: TaskDescription, run_s: float, fails: int = 0) -> None:
        self.task, self.run_s, self.fails = task, run_s, fails
        self.shape: ResourceShape = shape_of(task.requirements)
        self.begun_at: float | None = None
        """When user code of it first began."""
        self.losses = 0
        """Attempts that ended by a crash or with their cluster."""


class Attempt:
    """``asked_to_end``: we want it to be over. ``over``: it is, over there."""

    __slots__ = ("asked_to_end", "began_at", "key", "order", "over", "parts", "work")

    def __init__(self, order: Dispatch, work: Work) -> None:
        self.order, self.work = order, work
        self.key = (order.task_id, order.attempt)
        self.parts: Parts | None = None
        self.began_at: float | None = None
        self.asked_to_end = False
        self.over = False
