"""SecretMasker: masks the secrets of an item in the data that clusters return about it, once, on arrival.

Results and output are masked by the ResultCollector, events of the dispatcher and of jobs before they are posted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.redaction import item_secrets, mask_values
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, DispatchRefused, Event


class _Record(Protocol):
    @property
    def task(self) -> TaskDescription: ...


class SecretMasker:
    """Used on the loop. ``record`` returns the record of an item, or None if it is forgotten."""

    def __init__(self, record: Callable[[str], _Record | None]) -> None:
        self._record = record
        self._last: tuple[TaskDescription | None, tuple[str, ...]] = None, ()

    def secrets(self, task_id: str) -> tuple[str, ...]:
        """The secrets of an item; empty if it is unknown."""
        record = self._record(task_id)
        if record is None:
            return ()
        if self._last[0] is not record.task:  # output comes in many pieces
            self._last = record.task, item_secrets(record.task)
        return self._last[1]

    def text(self, task_id: str, text: str) -> str:
        return mask_values(text, self.secrets(task_id)) if text else text

    def event(self, event: Event) -> Event:
        """The same event with a masked sentence."""
        if isinstance(event, (AttemptFinished, DispatchRefused)) and event.sentence:
            sentence = self.text(event.task_id, event.sentence)
            return event if sentence == event.sentence else replace(event, sentence=sentence)
        return event

    def result(self, result: CallResult) -> CallResult:
        """The same result with a masked message and traceback. Its value or pickled exception, which only its owner
        gets, is not changed."""
        if not result.message and not result.traceback:
            return result
        message, traceback = self.text(result.task_id, result.message), self.text(result.task_id, result.traceback)
        if message == result.message and traceback == result.traceback:
            return result
        return replace(result, message=message, traceback=traceback)
