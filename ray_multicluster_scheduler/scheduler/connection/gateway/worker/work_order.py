"""What a worker is told about a call: one flat byte string.

Ray passes plain ``bytes`` on as they are, and anything else through a pickler of its own, argument by argument. That
costs more than all the rest of a short call. What is large is not copied into it, but given to Ray beside it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import Line

Homes: TypeAlias = tuple[list[str], str] | None
"""Home directories of others, and the one that arguments under them are moved to."""


@dataclass(frozen=True, slots=True)
class ActorOrder:
    """For a new actor."""

    line: Line
    item: CurrentItem
    homes: Homes
    detached: bool

    def packed(self) -> bytes:
        """For :meth:`unpacked`, in another process of the same cluster."""
        line, item = self.line, self.item
        who = item.id, item.attempt, item.fence, item.cluster, item.member
        return pickle.dumps((tuple(line), who, self.homes, self.detached))

    @classmethod
    def unpacked(cls, data: bytes) -> ActorOrder:
        line, item, homes, detached = pickle.loads(data)  # nosec B301 # from packed(), by Ray
        return cls(Line(*line), CurrentItem(*item), homes, detached)


class TaskOrder(NamedTuple):
    """For a task: all of a short one in one argument of Ray's. What is None here comes beside it, in this order."""

    line: Line
    item: CurrentItem
    homes: Homes
    digest: str
    short: bool
    function: bytes | None
    arguments: bytes | None

    def packed(self) -> bytes:
        """For :meth:`unpacked`, in another process of the same cluster."""
        item = self.item
        who = item.id, item.attempt, item.fence, item.cluster, item.member
        return pickle.dumps((tuple(self.line), who, *self[2:]))

    @classmethod
    def unpacked(cls, data: bytes) -> TaskOrder:
        line, who, *rest = pickle.loads(data)  # nosec B301 # from packed(), by Ray
        return cls(Line(*line), CurrentItem(*who), *rest)


class MethodOrder(NamedTuple):
    """For a method of an actor, which knows the rest. Arguments that are None come beside it."""

    key: Key
    method: str
    homes: Homes
    arguments: bytes | None

    def packed(self) -> bytes:
        """For :meth:`unpacked`, in another process of the same cluster."""
        return pickle.dumps(tuple(self))

    @classmethod
    def unpacked(cls, data: bytes) -> MethodOrder:
        return cls(*pickle.loads(data))  # nosec B301 # from packed(), by Ray
