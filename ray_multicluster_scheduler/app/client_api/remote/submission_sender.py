"""SubmissionSender: sends submissions to the service in batches, exactly once, retrying until it answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray_multicluster_scheduler.app.client_api.remote.program_packages import ProgramPackages
from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskSubmissionError, error_from_problem
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.notices import notify
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.item import Item

_log = get_logger(__name__)

MAX_ITEMS = 500
MAX_BYTES = 8 * 2**20
NOTIFY_AFTER_S = 3.0
"""Time without an accepted submission after which a notice is printed."""


@dataclass(slots=True)
class PendingSubmission:
    """An item with its document and payloads for the service."""

    item: Item
    document: dict[str, Any]
    blobs: dict[str, bytes]
    sent_with: set[str] = field(default_factory=set)
    runtime_env: dict[str, Any] | None = None
    """The original runtime_env, set once its packages were uploaded."""


class SubmissionSender:
    """Runs on the loop. ``accepted`` or ``refused`` is called for each submission, in order."""

    def __init__(
        self,
        client: ServiceClient,
        name: str,
        accepted: Callable[[PendingSubmission, Mapping[str, Any]], object],
        refused: Callable[[PendingSubmission, SchedulerError], object],
    ) -> None:
        self._client, self._name = client, name
        self._accepted, self._refused = accepted, refused
        self._waiting: deque[PendingSubmission] = deque()
        self._uploaded: set[str] = set()
        self._packages = ProgramPackages(client)
        self._sending: asyncio.Task[None] | None = None
        self.last_error = ""
        """Reason why the service currently rejects submissions, as a sentence."""
        self._waits_since: float | None = None
        self._notified = False

    def put(self, pending: PendingSubmission) -> None:
        self._waiting.append(pending)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Stop; unsent submissions are dropped."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._packages.close()

    def _on_unavailable(self, batch: list[PendingSubmission], error: SchedulerError) -> None:
        """Record why the service did not accept a batch, which is retried, and print a notice once."""
        now = time.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        self.last_error = error.message
        if not self._notified and now - self._waits_since >= NOTIFY_AFTER_S:
            self._notified = True
            more = len(batch) + len(self._waiting) - 1
            what = batch[0].item.id + (f" and {more} more" if more else "")
            notify(f"{what}: not confirmed yet by {self._client.address}; retrying: {error.message}")

    async def _send_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # batch with submissions of the same moment
            batch = self._next_batch()
            try:
                batch = await self._upload_large(await self._pack(batch))
                answers = await self._send(batch)
            except (TypeError, ValueError):  # one of them is not JSON-serializable
                self._waiting.extendleft(reversed(self._serializable(batch)))
                continue
            except SchedulerError as error:
                for pending in batch:
                    self._refused(pending, error)
                continue
            except Exception as error:  # noqa: BLE001 - otherwise their waiters would never return
                _log.exception("sending submissions failed unexpectedly")
                for pending in batch:
                    self._refused(pending, _defect(pending.item, error))
                continue
            again = []
            for pending, answer in zip(batch, answers, strict=True):
                problem = answer.get("problem")
                missing = wire.missing_blobs(problem) if problem else ()
                new = not set(missing) <= pending.sent_with
                if missing and new and self._packages.lost(missing):
                    pending.sent_with.update(missing)
                    again.append(pending)
                elif missing and new and set(missing) <= set(pending.blobs):
                    self._uploaded.difference_update(missing)  # the service has deleted them since the upload
                    again.append(pending)
                elif problem:
                    self._refused(pending, error_from_problem(problem))
                else:
                    self._accepted(pending, answer)
            self._waiting.extendleft(reversed(again))

    def _next_batch(self) -> list[PendingSubmission]:
        batch: list[PendingSubmission] = []
        size = 0
        while self._waiting and len(batch) < MAX_ITEMS and size < MAX_BYTES:
            batch.append(self._waiting.popleft())
            size += sum(len(data) for data in batch[-1].blobs.values() if len(data) <= wire.INLINE_BYTES) + 1000
        return batch

    def _serializable(self, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Return the submissions that can be written as JSON; the others are refused."""
        plain = []
        for pending in batch:
            try:
                json.dumps(pending.document)
            except (TypeError, ValueError) as error:
                problem = TaskSubmissionError(
                    f"{pending.item.id} cannot be written as JSON: {error}.",
                    task_id=pending.item.id,
                    next_step="use only text, numbers, lists and mappings in its options and its runtime_env",
                )
                self._refused(pending, problem)
            else:
                plain.append(pending)
        return plain

    async def _pack(self, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Upload the packages of each runtime_env; submissions whose packages cannot be uploaded are refused."""
        packed = []
        for pending in batch:
            task = pending.document["task"]
            env = pending.runtime_env or task.get("runtime_env")
            try:
                if env:
                    pending.runtime_env = dict(env)
                    task["runtime_env"] = await self._packages.resolved(env)
            except SchedulerError as error:
                self._refused(pending, error)
            else:
                packed.append(pending)
        return packed

    async def _upload_large(self, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Upload large payloads; submissions whose payloads cannot be uploaded are refused."""
        uploaded = []
        for pending in batch:
            try:
                for digest, data in pending.blobs.items():
                    if len(data) > wire.INLINE_BYTES and digest not in self._uploaded:
                        await self._client.upload(digest, data, partial(self._on_unavailable, batch))
                        self._uploaded.add(digest)
                        pending.sent_with.add(digest)
            except SchedulerError as error:
                self._refused(pending, error)
            else:
                uploaded.append(pending)
        return uploaded

    async def _send(self, batch: list[PendingSubmission]) -> list[dict[str, Any]]:
        blobs: dict[str, bytes] = {}
        for pending in batch:
            for digest, data in pending.blobs.items():
                if len(data) <= wire.INLINE_BYTES and digest not in self._uploaded:
                    blobs[digest] = data
                    pending.sent_with.add(digest)
        body = {
            "client": self._name,
            "items": [pending.document for pending in batch],
            "blobs": wire.bytes_to_wire(blobs),
        }
        answer = await self._client.ask(
            "POST", "/api/v1/items/batch", body, patience=None, waiting=partial(self._on_unavailable, batch)
        )
        self._waits_since, self._notified, self.last_error = None, False, ""
        self._uploaded.update(blobs)
        if len(self._uploaded) > 100_000:
            self._uploaded.clear()
        answers: list[dict[str, Any]] = answer["items"]
        return answers


def _defect(item: Item, error: Exception) -> TaskSubmissionError:
    return TaskSubmissionError(
        f"{item.id} could not be sent to the service: unexpected {type(error).__name__}: {error}.",
        task_id=item.id,
        next_step="report this as a bug, with the log of ray_multicluster_scheduler",
    )
