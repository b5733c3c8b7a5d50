"""Whose turn it is among the calls of one actor's methods: in the order of their numbers, whatever came first."""

from __future__ import annotations

from collections import deque

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, Method


class Turns:
    """The calls that were not given to Ray yet. Each process of the control plane counts its calls from 0; when the
    first call of a later one comes, those of the one before that are here go first, and those that are not never come.
    """

    def __init__(self) -> None:
        self._life = self._next = 0
        self._waiting: dict[int, CallRecord] = {}
        """Of the newest life, by number."""
        self._due: deque[CallRecord] = deque()
        """Before all of those, in this order: nothing that is missing between them comes any more."""

    def add(self, method: Method, record: CallRecord) -> bool:
        """Take this call. False: its turn is over, because a later one had to do without it."""
        if method.life > self._life:
            self._due.extend(self._waiting[number] for number in sorted(self._waiting))
            self._waiting.clear()
            self._life, self._next = method.life, 0
        if method.life < self._life or method.number < self._next:
            return False
        self._waiting[method.number] = record
        return True

    def skip_to(self, method: Method) -> None:
        """What has not come before this one never will: who sent it is gone."""
        if method.life == self._life:
            for number in range(self._next, method.number):
                record = self._waiting.pop(number, None)
                if record is not None:
                    self._due.append(record)
            self._next = max(self._next, method.number)

    def take(self) -> CallRecord | None:
        """The next one, if it is here and ready; it does not wait here any more."""
        record = self._due[0] if self._due else self._waiting.get(self._next)
        if record is None or record.being_stored:
            return None
        if self._due:
            return self._due.popleft()
        del self._waiting[self._next]
        self._next += 1
        return record

    def clear(self) -> list[CallRecord]:
        """All that are here, in their order; none is afterwards."""
        records = [*self._due, *(self._waiting[number] for number in sorted(self._waiting))]
        self._due.clear()
        self._waiting.clear()
        return records

    def __bool__(self) -> bool:
        return bool(self._due or self._waiting)
