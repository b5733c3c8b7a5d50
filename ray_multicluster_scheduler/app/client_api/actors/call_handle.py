"""The handles of calls of an actor's methods."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, PartHandle
from ray_multicluster_scheduler.app.client_api.handles.handle_html import handle_html
from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane


class _OfCall(Handle):
    """What differs from an item of the brain."""

    __slots__ = ()
    _item: CallPromise

    def cancel(self, *, force: bool = False) -> None:
        """One that has not been sent yet never is; of one that was, Ray is asked (a method that runs goes on unless it
        is a coroutine)."""
        if not self.done():
            self._runtime.cancel_call(self._item.id, force=force)

    def explain(self) -> dict[str, Any]:
        """Which actor it is for, where that is, how many calls are before it, and why it waits."""
        return self._runtime.explain_call(self._item)

    def logs(self, *, stream: str | None = None) -> str:
        """What the actor printed: output of methods is not told apart."""
        actor = self._item.actor.item
        return self._runtime.output.text(actor.id, actor.attempt, stream)


class ActorCallHandle(_OfCall):
    """One call of a method."""

    __module__ = "ray_multicluster_scheduler"  # as the other handles: inside a cluster, the native one

    __slots__ = ()

    def __init__(self, call: CallPromise, runtime: ControlPlane) -> None:
        super().__init__(call, runtime)

    def __repr__(self) -> str:
        where = f" on {self.cluster!r}" if self.cluster else ""
        return f"<ActorCallHandle {self.id} {self._item.name} {self.state}{where}>"

    def _repr_html_(self) -> str:
        return handle_html("ActorCallHandle", self.id, self._item, self._item.name)


class CallPartHandle(_OfCall, PartHandle):
    """One of the values of a call with ``num_returns``."""

    __slots__ = ()
