"""StoredOutput: what was printed is at hand while it is new, and in the store for whoever asks later."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.exception import ResultLostError
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import Output, OutputStore, as_text

Key: TypeAlias = tuple[str, int]


class StoredOutput(OutputStore):
    """Each document has what came since the one before. Who prints nothing has none.

    What is pushed out of memory is read from the store; what was not written by then is lost, and its document says how
    much that was."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.behind: dict[Key, None] = {}
        """Attempts of which something is not written."""
        self._whole: set[Key] = set()
        self._elsewhere: dict[str, set[int]] = {}
        """Attempts that were pushed out: memory has less of them than the store."""

    def write(self, task_id: str, attempt: int, stream: str, text: str) -> None:
        key = (task_id, attempt)
        if key not in self._whole:
            super().write(task_id, attempt, stream, text)
            self.behind[key] = None

    def count_dropped(self, task_id: str, attempt: int, characters: int) -> None:
        key = (task_id, attempt)
        if key not in self._whole:
            super().count_dropped(task_id, attempt, characters)
            self.behind[key] = None

    def forget(self, task_id: str) -> None:
        super().forget(task_id)
        self._whole = {key for key in self._whole if key[0] != task_id} if self._whole else self._whole
        self._elsewhere.pop(task_id, None)

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """What is at hand; nothing of an attempt that has to be read."""
        return "" if attempt in self._elsewhere.get(task_id, ()) else super().text(task_id, attempt, stream)

    def unwritten(self, task_id: str, attempt: int) -> bytes | None:
        """A document of what came since the last call; None if nothing did. Whoever calls writes it."""
        self.behind.pop((task_id, attempt), None)
        with self._changed:
            parts, dropped = self._news(task_id, attempt)
            self._lost.get(task_id, {}).pop(attempt, None)
            output = self._outputs.get(task_id, {}).get(attempt)
            if output is not None:
                output.written, output.told = len(output.parts), output.dropped
        return json.dumps({"parts": parts, "dropped": dropped}).encode() if parts or dropped else None

    def _news(self, task_id: str, attempt: int) -> tuple[list[tuple[str, str]], int]:
        """With the lock: what is not written, and how much more was dropped."""
        parts, output = self._gap(task_id, attempt), self._outputs.get(task_id, {}).get(attempt)
        if output is None:
            return parts, 0
        return [*parts, *output.parts[output.written :]], output.dropped - output.told

    def _pushed_out(self, task_id: str, attempt: int, output: Output) -> None:
        self._elsewhere.setdefault(task_id, set()).add(attempt)
        lost = sum(len(text) for _, text in output.parts[output.written :]) + output.dropped - output.told
        if lost:
            self._lose(task_id, attempt, lost)
            self.behind[task_id, attempt] = None

    def take_up(self, task_id: str, attempt: int, *, whole: bool) -> None:
        """Of an attempt that is not over: what the process before had written. With ``whole`` that is all of it, and
        what its agent says once more is not heard. Reads; before anything is written."""
        parts, dropped, _ = self._read(task_id, attempt)
        for stream, text in parts:
            super().write(task_id, attempt, stream, text)
        if dropped:
            super().count_dropped(task_id, attempt, dropped)
        self.unwritten(task_id, attempt)  # it is written
        if whole:
            self._whole.add((task_id, attempt))

    def stored_text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """As :meth:`text`, of an attempt that is over; reads. Raises ResultLostError if it is not kept any more."""
        parts, dropped, lost = self._read(task_id, attempt)
        if lost:
            raise ResultLostError(
                f"What attempt {attempt} of {task_id} printed was forgotten.",
                task_id=task_id,
                next_step="read output sooner, or keep it longer (keep_payloads_s)",
            )
        with self._changed:
            fresh, more = self._news(task_id, attempt)
        return as_text([*parts, *fresh], dropped + more, stream)

    def _read(self, task_id: str, attempt: int) -> tuple[list[list[str]], int, bool]:
        parts: list[list[str]] = []
        dropped, lost = 0, False
        for digest in self._store.output(task_id, attempt):
            data = None if digest is None else self._store.blob(digest)
            if data is None:
                lost = True
                continue
            document: dict[str, Any] = json.loads(data)
            parts += document["parts"]
            dropped += int(document["dropped"])
        return parts, dropped, lost
