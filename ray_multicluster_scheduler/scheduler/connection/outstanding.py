"""What a link still owes an answer for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ray_multicluster_scheduler.scheduler.connection.cluster_link import Call

Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Debt:
    call: Call | None
    cancelled: bool = False
    force: bool = False
    started: bool = False


class Outstanding:
    """Calls that were given to a link and not answered yet; the call itself is kept until it was accepted."""

    def __init__(self) -> None:
        self._debts: dict[Key, _Debt] = {}

    def add(self, call: Call) -> None:
        self._debts[(call.task_id, call.attempt)] = _Debt(call)

    def accepted(self, key: Key) -> bool:
        """The other side has it. True the first time."""
        debt = self._debts.get(key)
        if debt is None or debt.call is None:
            return False
        debt.call = None
        return True

    def started(self, key: Key) -> bool:
        """It was seen to run. True the first time, while it is owed."""
        debt = self._debts.get(key)
        if debt is None or debt.started:
            return False
        debt.started = True
        return True

    def want_cancel(self, key: Key, force: bool) -> bool:
        """Remember that its end was asked for. False when nothing is owed."""
        debt = self._debts.get(key)
        if debt is None:
            return False
        debt.cancelled = True
        debt.force = debt.force or force
        return True

    def cancel_wanted(self, key: Key) -> bool | None:
        """None: its end was not asked for. Else whether by force."""
        debt = self._debts.get(key)
        return debt.force if debt is not None and debt.cancelled else None

    def settle(self, key: Key) -> bool:
        """The answer came. False when it came before (a repeat)."""
        return self._debts.pop(key, None) is not None

    def clear(self) -> list[tuple[Key, bool]]:
        """Everything still owed, with whether its end was asked for; nothing is owed afterwards."""
        owed = [(key, debt.cancelled) for key, debt in self._debts.items()]
        self._debts.clear()
        return owed

    def keys(self) -> list[Key]:
        return list(self._debts)

    def cancels(self) -> list[tuple[Key, bool]]:
        """Whose end was asked for, and whether by force."""
        return [(key, debt.force) for key, debt in self._debts.items() if debt.cancelled]

    def call(self, key: Key) -> tuple[Call | None, bool]:
        """The call itself if it was never accepted, and whether its end was asked for."""
        debt = self._debts.get(key)
        return (None, False) if debt is None else (debt.call, debt.cancelled)

    def __contains__(self, key: object) -> bool:
        return key in self._debts

    def __len__(self) -> int:
        return len(self._debts)
