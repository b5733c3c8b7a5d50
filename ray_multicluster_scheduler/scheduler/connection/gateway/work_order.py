"""What a worker is told about a call, besides its function and its arguments: one flat byte string.

Ray passes plain ``bytes`` on as they are, and anything else through a pickler of its own, argument by argument. That
costs more than all the rest of a short call.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.scheduler.connection.gateway.channel import Line
from ray_multicluster_scheduler.scheduler.connection.gateway.reports import Key

Homes: TypeAlias = tuple[list[str], str] | None
"""Home directories of others, and the one that arguments under them are moved to."""


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """For a task and for a new actor. ``digest`` is that of a task's function."""

    line: Line
    item: CurrentItem
    homes: Homes = None
    digest: str = ""
    detached: bool = False

    def packed(self) -> bytes:
        """For :meth:`unpacked`, in another process of the same cluster."""
        line, item = self.line, self.item
        parts = (line.host, line.port, line.secret, line.lease_s), (item.id, item.attempt, item.fence, item.cluster)
        return pickle.dumps((*parts, self.homes, self.digest, self.detached))

    @classmethod
    def unpacked(cls, data: bytes) -> WorkOrder:
        line, item, homes, digest, detached = pickle.loads(data)
        return cls(Line(*line), CurrentItem(*item), homes, digest, detached)


class MethodOrder(NamedTuple):
    """For a method of an actor, which knows the rest."""

    key: Key
    method: str
    homes: Homes

    def packed(self) -> bytes:
        """For :meth:`unpacked`, in another process of the same cluster."""
        return pickle.dumps(tuple(self))

    @classmethod
    def unpacked(cls, data: bytes) -> MethodOrder:
        return cls(*pickle.loads(data))
