"""The handles of calls of an actor's methods."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.call_item import CallItem
from ray_multicluster_scheduler.app.client_api.embedded.job_words import EXPIRED
from ray_multicluster_scheduler.app.client_api.embedded.runtime import Runtime
from ray_multicluster_scheduler.app.client_api.explanation_text import Explanation
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, PartHandle

ANSWERED = "ANSWERED"


class _OfCall(Handle):
    """What differs from an item of the brain."""

    __slots__ = ()
    _item: CallItem
    _runtime: Runtime

    def cancel(self, *, force: bool = False) -> None:
        """One that has not been sent yet never is; of one that was, Ray is asked (a method that runs goes on unless it
        is a coroutine)."""
        if not self.done():
            cancel_call(self._runtime, self._item, force=force)

    def explain(self) -> dict[str, Any]:
        """Which actor it is for, where that is, how many calls are before it, and why it waits."""
        return explain_call(self._runtime, self._item)

    def logs(self, *, stream: str | None = None) -> str:
        """What the actor printed: output of methods is not told apart."""
        actor = self._item.actor.item
        return self._runtime.output.text(actor.id, actor.attempt, stream)


class ActorCallHandle(_OfCall):
    """One call of a method."""

    __module__ = "ray_multicluster_scheduler"  # as the other handles: inside a cluster, the native one

    __slots__ = ()

    def __init__(self, call: CallItem, runtime: Runtime) -> None:
        super().__init__(call, runtime)

    def __repr__(self) -> str:
        where = f" on {self.cluster!r}" if self.cluster else ""
        return f"<ActorCallHandle {self.id} {self._item.name} {self.state}{where}>"


class CallPartHandle(_OfCall, PartHandle):
    """One of the values of a call with ``num_returns``."""

    __slots__ = ()


def cancel_call(runtime: Runtime, call: CallItem, *, force: bool) -> None:
    """From any thread. Nothing happens after the scheduler's end: then it is answered. Raises SchedulerError in the
    child of a fork."""
    runtime.check_process()
    runtime.soon(lambda: runtime.method_calls.cancel(call, force=force))


def cancel_by_id(runtime: Runtime, call_id: str, *, force: bool) -> None:
    """The same for the id of a call; nothing happens to one that was answered."""
    call = runtime.method_calls.find(call_id)
    if call is not None:
        cancel_call(runtime, call, force=force)


def explain_by_id(runtime: Runtime, call_id: str) -> dict[str, Any]:
    """The same for the id of a call; of one that was answered only its handle knows more."""
    call = runtime.method_calls.find(call_id)
    if call is not None:
        return explain_call(runtime, call)
    return Explanation(id=call_id, kind="call", state=EXPIRED, code=ANSWERED, sentence="it was answered")


def explain_call(runtime: Runtime, call: CallItem) -> dict[str, Any]:
    """From any thread: why a call is where it is, as data."""

    def look() -> dict[str, Any]:
        over = call.outcome
        sentence, before = (over.completion.message, 0) if over is not None else call.actor.why_waiting(call)
        actor = call.actor.item
        return {
            "id": call.id,
            "kind": "call",
            "name": call.name,
            "state": str(call.state),
            "cluster": call.cluster,
            "attempt": call.attempt,
            "code": ANSWERED if over is not None else ("SENT" if call.sent_to else "WAITS"),
            "sentence": sentence,
            "calls_before": before,
            "actor": {"id": actor.id, "state": str(actor.state), "cluster": actor.cluster, "attempt": actor.attempt},
        }

    return Explanation(runtime.ask(look))
