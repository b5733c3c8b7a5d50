"""The handles of calls of actor methods, and of the values of generators, in the program outside clusters."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, PartHandle, handle_html
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Outcome


class _CallHandle(Handle):
    """Base of the handles of calls, which are not scheduled items."""

    __slots__ = ()
    _item: CallPromise

    def cancel(self, *, force: bool = False) -> bool:
        """Cancel it. A running method continues unless it is a coroutine. False: it had ended already."""
        return not self.done() and self._runtime.cancel_call(self._item.id, force=force)

    def _wait(self, timeout: float | None) -> Outcome:
        outcome = super()._wait(timeout)
        if outcome.completion.error == "ActorDiedError":
            unread_failures.expect(self._item.actor.item.id)
        elif not outcome.succeeded:
            unread_failures.read(self._item.actor.item.id)  # if it failed, the error of the call names that
        return outcome

    def explain(self) -> dict[str, Any]:
        """Return its actor, the actor's cluster, the number of calls before it, and why it waits."""
        return self._runtime.explain_call(self._item)

    def logs(self, *, stream: str | None = None) -> str:
        """Return the output of the actor; it is not separated by calls."""
        actor = self._item.actor.item
        return self._runtime.output.text(actor.id, actor.attempt, stream)


class ActorCallHandle(_CallHandle):
    """One call of a method."""

    __module__ = "ray_multicluster_scheduler"  # as the other handles: inside a cluster, the native one

    __slots__ = ()

    def __repr__(self) -> str:
        where = f" on {self.cluster!r}" if self.cluster else ""
        return f"<ActorCallHandle {self.id} {self._item.name} {self.state}{where}>"

    def _repr_html_(self) -> str:
        return handle_html("ActorCallHandle", self.id, self._item, self._item.name)


class CallPartHandle(_CallHandle, PartHandle):
    """One of the values of a call with ``num_returns``."""

    __slots__ = ()
