"""Covers: what clusters say of items, without the secrets of those items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.redaction.item_secrets import covered, secrets_of
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, DispatchRefused, Event


class _Described(Protocol):
    @property
    def task(self) -> TaskDescription: ...


class SecretMasker:
    """Used on the loop; ``record`` knows what is not forgotten."""

    def __init__(self, record: Callable[[str], _Described | None]) -> None:
        self._record = record
        self._last: tuple[TaskDescription | None, tuple[str, ...]] = None, ()

    def secrets(self, task_id: str) -> tuple[str, ...]:
        """Of one that is known here."""
        known = self._record(task_id)
        if known is None:
            return ()
        if self._last[0] is not known.task:  # what is printed comes in many pieces
            self._last = known.task, secrets_of(known.task)
        return self._last[1]

    def text(self, task_id: str, text: str) -> str:
        return covered(text, self.secrets(task_id)) if text else text

    def event(self, event: Event) -> Event:
        """The same event with a sentence that may be told."""
        if isinstance(event, (AttemptFinished, DispatchRefused)) and event.sentence:
            said = self.text(event.task_id, event.sentence)
            return event if said == event.sentence else replace(event, sentence=said)
        return event

    def result(self, result: CallResult) -> CallResult:
        """The same answer; a value, or a pickled exception, is its owner's and is left as it is."""
        if not result.message and not result.traceback:
            return result
        message, traceback = self.text(result.task_id, result.message), self.text(result.task_id, result.traceback)
        if message == result.message and traceback == result.traceback:
            return result
        return replace(result, message=message, traceback=traceback)
