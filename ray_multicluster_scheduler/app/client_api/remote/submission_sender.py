"""Outbound: what a program submits, on its way to the service: many at a time, never lost, never twice."""

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

MOST_ITEMS = 500
MOST_BYTES = 8 * 2**20
SAY_AFTER_S = 3.0
"""So long the service may take nothing before a person at the terminal is told."""


@dataclass(slots=True)
class PendingSubmission:
    """An item, and all that the service needs to take it."""

    item: Item
    document: dict[str, Any]
    blobs: dict[str, bytes]
    sent_with: set[str] = field(default_factory=set)
    runtime_env: dict[str, Any] | None = None
    """As the program gave it, once its packages were given to the service."""


class SubmissionSender:
    """Lives on the loop. ``accepted`` and ``refused`` are told of each, in their order."""

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
        self._there: set[str] = set()
        self._packages = ProgramPackages(client)
        self._sending: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why the service takes nothing just now, as a sentence."""
        self._waits_since: float | None = None
        self._said = False

    def put(self, parcel: PendingSubmission) -> None:
        self._waiting.append(parcel)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Whatever has not been sent is not."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._packages.close()

    def _hear_why(self, batch: list[PendingSubmission], error: SchedulerError) -> None:
        """Nothing is taken: this is asked again, and a person who waits is told so once."""
        now = time.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        self.trouble = error.message
        if not self._said and now - self._waits_since >= SAY_AFTER_S:
            self._said = True
            more = len(batch) + len(self._waiting) - 1
            what = batch[0].item.id + (f" and {more} more" if more else "")
            notify(
                f"{what}: not known to be accepted yet by {self._client.address}, which is asked again: {error.message}"
            )

    def _is_heard(self) -> None:
        self._waits_since, self._said, self.trouble = None, False, ""

    async def _send_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # what comes at the same moment goes along
            batch = self._next_batch()
            try:
                batch = await self._upload_large(await self._pack(batch))
                answers = await self._send(batch)
            except (TypeError, ValueError):  # something in one of them is no JSON
                self._waiting.extendleft(reversed(self._plain(batch)))
                continue
            except SchedulerError as error:
                for parcel in batch:
                    self._refused(parcel, error)
                continue
            except Exception as error:  # noqa: BLE001 - or whoever waits for one of them would wait for ever
                _log.exception("what was submitted could not be sent: a defect")
                for parcel in batch:
                    self._refused(parcel, _defect(parcel.item, error))
                continue
            again = []
            for parcel, answer in zip(batch, answers, strict=True):
                problem = answer.get("problem")
                missing = wire.missing_blobs(problem) if problem else ()
                new = not set(missing) <= parcel.sent_with
                if missing and new and self._packages.lost(missing):
                    parcel.sent_with.update(missing)
                    again.append(parcel)
                elif missing and new and set(missing) <= set(parcel.blobs):
                    self._there.difference_update(missing)  # the service forgot them meanwhile
                    again.append(parcel)
                elif problem:
                    self._refused(parcel, error_from_problem(problem))
                else:
                    self._accepted(parcel, answer)
            self._waiting.extendleft(reversed(again))

    def _next_batch(self) -> list[PendingSubmission]:
        batch: list[PendingSubmission] = []
        size = 0
        while self._waiting and len(batch) < MOST_ITEMS and size < MOST_BYTES:
            batch.append(self._waiting.popleft())
            size += sum(len(data) for data in batch[-1].blobs.values() if len(data) <= wire.INLINE_BYTES) + 1000
        return batch

    def _plain(self, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Those that can be written down; the others are refused."""
        plain = []
        for parcel in batch:
            try:
                json.dumps(parcel.document)
            except (TypeError, ValueError) as error:
                problem = TaskSubmissionError(
                    f"{parcel.item.id} cannot be written down: {error}.",
                    task_id=parcel.item.id,
                    next_step="use only text, numbers, lists and mappings in its options and its runtime_env",
                )
                self._refused(parcel, problem)
            else:
                plain.append(parcel)
        return plain

    async def _pack(self, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Returns those whose folders and modules the service has; the others are refused."""
        packed = []
        for parcel in batch:
            task = parcel.document["task"]
            env = parcel.runtime_env or task.get("runtime_env")
            try:
                if env:
                    parcel.runtime_env = dict(env)
                    task["runtime_env"] = await self._packages.resolved(env)
            except SchedulerError as error:
                self._refused(parcel, error)
            else:
                packed.append(parcel)
        return packed

    async def _upload_large(self, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Returns those whose payloads are there; the others are refused."""
        there = []
        for parcel in batch:
            try:
                for digest, data in parcel.blobs.items():
                    if len(data) > wire.INLINE_BYTES and digest not in self._there:
                        await self._client.upload(digest, data, partial(self._hear_why, batch))
                        self._there.add(digest)
                        parcel.sent_with.add(digest)
            except SchedulerError as error:
                self._refused(parcel, error)
            else:
                there.append(parcel)
        return there

    async def _send(self, batch: list[PendingSubmission]) -> list[dict[str, Any]]:
        blobs: dict[str, bytes] = {}
        for parcel in batch:
            for digest, data in parcel.blobs.items():
                if len(data) <= wire.INLINE_BYTES and digest not in self._there:
                    blobs[digest] = data
                    parcel.sent_with.add(digest)
        said = {
            "client": self._name,
            "items": [parcel.document for parcel in batch],
            "blobs": wire.bytes_to_wire(blobs),
        }
        answer = await self._client.ask(
            "POST", "/api/v1/items/batch", said, patience=None, waiting=partial(self._hear_why, batch)
        )
        self._is_heard()
        self._there.update(blobs)
        if len(self._there) > 100_000:
            self._there.clear()
        answers: list[dict[str, Any]] = answer["items"]
        return answers


def _defect(item: Item, error: Exception) -> TaskSubmissionError:
    return TaskSubmissionError(
        f"{item.id} could not be sent to the service: a defect ({type(error).__name__}: {error}).",
        task_id=item.id,
        next_step="report it, with the log of this program (logging of ray_multicluster_scheduler)",
    )
