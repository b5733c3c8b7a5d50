"""ObjectHandle, the result of `put`: a value that is pickled once and shipped once to each cluster that needs it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import payload_of
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane

_numbers = itertools.count(1)


class ObjectHandle(Handle):
    """A stored value. Each :meth:`result` is a new copy.

    The value is kept as long as this handle, or an unfinished item that has it as an argument.
    """

    __module__ = "ray_multicluster_scheduler"  # pickled by its public name: inside a cluster, the native handle

    __slots__ = ("digest", "handles", "modules")

    def __init__(self, data: bytes, modules: set[str], handles: tuple[Any, ...], runtime: ControlPlane) -> None:
        """``modules`` and ``handles`` are needed to unpickle it."""
        promise = Promise(f"object-{runtime.control_plane}-{next(_numbers)}")
        done = Complete(promise.id, TaskState.SUCCEEDED, 0, None, message="it was put")
        promise.ended(Outcome(done, CallResult(promise.id, 0, "succeeded", data)))
        super().__init__(promise, runtime)
        self.digest, self.modules, self.handles = digest_of(data), modules, handles

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        return self.digest, payload_of(outcome)

    def cancel(self, *, force: bool = False) -> bool:
        """False: the value exists already."""
        return False

    def explain(self) -> dict[str, Any]:
        """Return id and state."""
        return {"id": self.id, "kind": "object", "state": str(self.state), "code": "PUT", "sentence": "it was put"}

    def __repr__(self) -> str:
        return f"<ObjectHandle {self.id}>"
