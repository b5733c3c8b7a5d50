"""MethodQueue: puts the method calls of one actor into the order of their numbers, for ``ActorMethods``."""

from __future__ import annotations

from collections import deque

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, Method


class MethodQueue:
    """The calls that were not submitted to Ray yet. Each process of the control plane (a ``life``) counts its calls
    from 0. When the first call of a later life arrives, the waiting calls of the earlier life go first, without its
    missing calls."""

    def __init__(self) -> None:
        self._life = self._next = 0
        self._waiting: dict[int, CallRecord] = {}
        """Of the newest life, by number."""
        self._due: deque[CallRecord] = deque()
        """Calls that go before those, in this order, without a wait for missing numbers."""

    def add(self, method: Method, record: CallRecord) -> bool:
        """Queue this call. False: too late, because a later call was submitted."""
        if method.life > self._life:
            self._due.extend(self._waiting[number] for number in sorted(self._waiting))
            self._waiting.clear()
            self._life, self._next = method.life, 0
        if method.life < self._life or method.number < self._next:
            return False
        self._waiting[method.number] = record
        return True

    def skip_to(self, method: Method) -> None:
        """Do not wait for the missing calls before this one: their sender is gone."""
        if method.life == self._life:
            for number in range(self._next, method.number):
                record = self._waiting.pop(number, None)
                if record is not None:
                    self._due.append(record)
            self._next = max(self._next, method.number)

    def take(self) -> CallRecord | None:
        """Remove and return the next call, if it has arrived and its arguments are stored."""
        record = self._due[0] if self._due else self._waiting.get(self._next)
        if record is None or record.being_stored:
            return None
        if self._due:
            return self._due.popleft()
        del self._waiting[self._next]
        self._next += 1
        return record

    def clear(self) -> list[CallRecord]:
        """Remove and return all calls, in their order."""
        records = [*self._due, *(self._waiting[number] for number in sorted(self._waiting))]
        self._due.clear()
        self._waiting.clear()
        return records

    def __bool__(self) -> bool:
        return bool(self._due or self._waiting)
