"""CallQueue: an actor as its program sees it, and the calls of its methods."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Protocol

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments

ANSWERED = "ANSWERED"


class CallPromise(Promise):
    """One call of an actor's method. It is sent once and never again."""

    __slots__ = ("actor", "method")

    def __init__(self, call_id: str, actor: CallQueue, method: str) -> None:
        super().__init__(call_id)
        self.actor, self.method = actor, method

    @property
    def name(self) -> str:
        """For people: which method of what."""
        return f"{self.actor.item.task.name}.{self.method}"

    @property
    def accepted(self) -> bool:
        return True


class CallQueue(Protocol):
    """Safe from any thread. Calls are run in the order in which one thread makes them."""

    @property
    def item(self) -> Item:
        """The actor."""

    @property
    def waiting(self) -> Sized:
        """Calls that have not left yet."""

    @property
    def unanswered(self) -> int:
        """How many have left and are not answered."""

    @property
    def killed(self) -> bool:
        """Its end was asked for, even if it is not over yet."""

    def call(self, method: str, arguments: Arguments, *, has_paths: bool) -> CallPromise:
        """Make a call. ``has_paths``: some of its arguments begin with a home directory. Raises TaskSubmissionError for
        arguments that cannot be sent, SchedulerError after the end."""

    def no_more(self) -> None:
        """Its end was asked for: calls that have not left yet wait for it and fail."""


def actor_end(actor: Outcome) -> str:
    """An actor that takes no calls any more."""
    if actor.completion.state is TaskState.SUCCEEDED:
        return "has left by itself"
    return "was killed" if actor.completion.state is TaskState.CANCELLED else "has ended"


def never_sent(call: CallPromise, ended: Outcome) -> str:
    """Its actor is over."""
    why = f"actor {call.actor.item.id} {actor_end(ended)}. {ended.completion.message}"
    return f"{call.name} ({call.id}) was not sent: {why}".strip()


def call_summary(call: CallPromise, code: str, sentence: str, before: int) -> dict[str, Any]:
    """Why a call is where it is, as data; ``code`` and ``sentence`` of one that is not answered."""
    actor = call.actor.item
    return {
        "id": call.id,
        "kind": "call",
        "name": call.name,
        "state": str(call.state),
        "cluster": call.cluster,
        "attempt": call.attempt,
        "code": ANSWERED if call.outcome is not None else code,
        "sentence": sentence,
        "calls_before": before,
        "actor": {"id": actor.id, "state": str(actor.state), "cluster": actor.cluster, "attempt": actor.attempt},
    }
