"""What a link still owes an answer for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call

Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class PendingCall:
    """One call, and what was asked for it. The call itself is kept until it was accepted.

    What was asked for may overtake a large call, or be lost with a connection: it is kept to be asked again.
    """

    call: Call | None
    actor: Key | None = None
    """Whose method it is, if it is one."""
    output_owner: Key | None = None
    """Whose output is what it prints, if it is not its own: its actor's, or that one's gang's."""
    cancelled: bool = False
    force: bool = False
    place: bool = False
    recalled: bool = False
    moved: bool = False
    started: bool = False
    of_before: bool = False
    """A method that the process before ours sent: only the agent can know whether it arrived there."""


class PendingCalls:
    """Calls that were given to a link and not answered yet."""

    def __init__(self) -> None:
        self._debts: dict[Key, PendingCall] = {}

    def add(self, call: Call) -> None:
        actor = output_owner = None
        if call.method is not None:
            actor = (call.method.actor_id, call.method.actor_attempt)
            output_owner = (call.method.gang_id or call.method.actor_id, call.method.actor_attempt)
        self._debts[(call.task_id, call.attempt)] = PendingCall(call, actor, output_owner)

    def adopt(self, key: Key) -> None:
        """One that the other side has, and has begun."""
        self._debts.setdefault(key, PendingCall(None, started=True))

    def adopt_method(self, key: Key, actor: Key, output_owner: Key) -> None:
        """One of an actor's method, that the other side may have."""
        self._debts.setdefault(key, PendingCall(None, actor, output_owner, started=True, of_before=True))

    def get(self, key: Key) -> PendingCall | None:
        """None when it is answered, or was never ours."""
        return self._debts.get(key)

    def accepted(self, key: Key) -> PendingCall | None:
        """The other side has it. Its debt the first time, else None."""
        debt = self._debts.get(key)
        if debt is None or debt.call is None:
            return None
        debt.call = None
        return debt

    def started(self, key: Key) -> bool:
        """It was seen to run. True the first time, while it is owed; never for a method."""
        debt = self._debts.get(key)
        if debt is None or debt.started or debt.actor is not None:
            return False
        debt.started = True
        return True

    def settle(self, key: Key) -> PendingCall | None:
        """The answer came. None when it came before (a repeat)."""
        return self._debts.pop(key, None)

    def clear(self) -> list[tuple[Key, PendingCall]]:
        """Everything still owed; nothing is owed afterwards."""
        owed = list(self._debts.items())
        self._debts.clear()
        return owed

    def items(self) -> list[tuple[Key, PendingCall]]:
        return list(self._debts.items())

    def keys(self) -> list[Key]:
        return list(self._debts)

    def __contains__(self, key: object) -> bool:
        return key in self._debts

    def __len__(self) -> int:
        return len(self._debts)
