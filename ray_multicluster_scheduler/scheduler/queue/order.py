"""Orders: who goes first. One small class each; a smaller key goes earlier."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from ray_multicluster_scheduler.common.model import TaskDescription

OrderKey: TypeAlias = tuple[float, ...]


class Order(Protocol):
    """Called once when an item is queued; the key never changes while it waits."""

    name: str

    def key(self, task: TaskDescription, number: int) -> OrderKey:
        """``number`` counts submissions; keys of two items are never equal."""


class PriorityThenFifo:
    """Higher priority first; among equals, the one that was submitted first."""

    name = "priority"

    def key(self, task: TaskDescription, number: int) -> OrderKey:
        return (-task.priority, number)
