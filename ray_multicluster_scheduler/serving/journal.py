"""TaskJournal: keeps the tasks and instances of a serving scheduler in a store, so that they outlive its process."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.store import Change, ServingStatus, ServingTask, SqliteStore, Store
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from ray_multicluster_scheduler.serving.models import TaskStatus
from ray_multicluster_scheduler.serving.predictor import features_of
from ray_multicluster_scheduler.serving.router.forwarder import InstanceChannel
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo

_INSTANCE, _STRATEGY, _CONFIGURED = "serving-instance:", "serving-strategy:", "serving-configured"
_ACKNOWLEDGED = "acknowledged"
"""The state of a scheduled task that its instance has confirmed."""


class TaskJournal:
    """Each writing method returns at once, with a future that completes when the write is on disk. Writes are made in
    the order of the calls, many in one commit. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.written: Future[int] = Future()
        """The future of the last write."""
        self.written.set_result(0)

    def check_writable(self) -> None:
        """Raises ServiceUnavailableError while nothing can be written, because the disk is full, say."""
        problem = self._store.write_problem
        if problem is not None:
            raise ServiceUnavailableError(f"Nothing can be accepted now. {problem}", next_step="submit it again later")

    # ---- writing

    def accepted(self, tasks: Iterable[tuple[Task, TaskInfo]]) -> Future[int]:
        rows = []
        for task, info in tasks:
            request = _encode({"input": task.input, "metadata": task.metadata})
            at = info.submit_time
            rows.append(
                ServingTask(task.id, task.model, info.owner, at, info.fingerprint, TaskStatus.QUEUED, at, "", request)
            )
        return self._write(Change(new_serving=rows))

    def moved(self, task: Task) -> Future[int]:
        """A task is about to be forwarded, was acknowledged, or waits again."""
        if task.instance is None or task.started is None:
            return self._status(task.id, TaskStatus.QUEUED, time.time(), task.tried, None)
        state = _ACKNOWLEDGED if task.acknowledged else TaskStatus.SCHEDULED
        started_at = time.time() - (time.monotonic() - task.started)
        return self._status(task.id, state, started_at, [*task.tried, task.instance.uuid], None)

    def finished(self, task: Task, result: Any, error: str | None, execution_ms: float | None) -> Future[int]:
        state = TaskStatus.COMPLETED if error is None else TaskStatus.FAILED
        instances = [task.instance.uuid] if task.instance is not None else task.tried
        outcome = _encode({"result": result, "error": error, "execution_ms": execution_ms})
        return self._status(task.id, state, time.time(), instances, outcome)

    def forgotten(self, task_ids: list[str]) -> None:
        self._write(Change(forgotten_serving=task_ids))

    def save_instance(self, channel: InstanceChannel, instance: Instance) -> None:
        if not channel.client.stored:
            return
        registration = {
            "url": channel.client.base_url,
            "addresses": list(channel.client.addresses),
            "kind": channel.kind,
            "model_name": channel.model,
            "concurrency": channel.concurrency,
            "weight": instance.weight,
            "hardware": instance.hardware,
            "draining": instance.draining,
            "boot_id": channel.boot_id,
        }
        self._write(Change(settings={_INSTANCE + channel.uuid: _encode(registration)}))

    def forget_instance(self, uuid: str) -> None:
        self._write(Change(settings={_INSTANCE + uuid: None}))

    def save_strategy(self, model: str | None, name: str) -> None:
        """What an operator has set: the strategy of a model, or (None) of all without one of their own."""
        self._write(Change(settings={_STRATEGY + (model or ""): name.encode()}))

    def save_configured(self, addresses: list[str]) -> None:
        """The addresses of the instances of the configuration."""
        self._write(Change(settings={_CONFIGURED: _encode({"addresses": addresses})}))

    def _status(self, task_id: str, state: str, at: float, instances: list[str], document: bytes | None) -> Future[int]:
        row = ServingStatus(state, at, ",".join(instances), document, task_id)
        return self._write(Change(serving_statuses={task_id: row}))

    def _write(self, change: Change) -> Future[int]:
        with self._lock:
            written = self.written = self._store.write(change)
        return written

    # ---- reading

    def instances(self) -> dict[str, dict[str, Any]]:
        """The registrations by UUID; those that are being removed come first."""
        found = self._store.settings(_INSTANCE)
        rows = {name.removeprefix(_INSTANCE): json.loads(document) for name, document in found.items()}
        return dict(sorted(rows.items(), key=lambda one: not one[1]["draining"]))

    def strategies(self) -> dict[str | None, str]:
        """See :meth:`save_strategy`."""
        found = self._store.settings(_STRATEGY)
        return {name.removeprefix(_STRATEGY) or None: value.decode() for name, value in found.items()}

    def configured(self) -> list[str]:
        """The addresses of the instances of the last configuration."""
        found = self._store.settings(_CONFIGURED).get(_CONFIGURED)
        return [] if found is None else list(json.loads(found)["addresses"])

    def tasks(self) -> list[tuple[TaskInfo, Task | None]]:
        """All tasks: the finished ones in the order in which they finished, then the others in the order of submission.
        ``started`` and ``acknowledged`` say what the last one of the instances ``tried`` had of the task."""
        finished: list[tuple[TaskInfo, Task | None]] = []
        live: list[tuple[TaskInfo, Task | None]] = []
        for row in self._store.serving_tasks():
            tried = row.instances.split(",") if row.instances else []
            document = json.loads(row.document)
            status = TaskStatus.SCHEDULED if row.state == _ACKNOWLEDGED else TaskStatus(row.state)
            info = TaskInfo(row.id, row.model, tried[-1] if tried else None, status, row.submitted_at, owner=row.owner)
            info.fingerprint = row.fingerprint
            if status.finished:
                info.completion_time, info.execution_ms = row.at, document["execution_ms"]
                info.result, info.error = document["result"], document["error"]
                finished.append((info, None))
                continue
            metadata, to_monotonic = document["metadata"], time.monotonic() - time.time()
            arrived = row.submitted_at + to_monotonic
            task = Task(row.id, row.model, document["input"], metadata, features_of(metadata), arrived, tried=tried)
            if status is TaskStatus.SCHEDULED:
                info.scheduled_time, info.reason = row.at, "it was forwarded before the restart"
                task.started, task.acknowledged = row.at + to_monotonic, row.state == _ACKNOWLEDGED
            live.append((info, task))
        return sorted(finished, key=lambda one: one[0].completion_time or 0) + live


@contextmanager
def open_journal(folder: str | Path) -> Iterator[TaskJournal]:
    """A journal in a folder of its own. Raises ConfigurationError if another process uses it, and StoreError."""
    with StateFolder(Path(folder)):
        store = SqliteStore(Path(folder))
        try:
            yield TaskJournal(store)
        finally:
            store.close()


def fingerprint_of(task: Task) -> int:
    """Equal for equal requests, in any process."""
    text = json.dumps([task.model, task.input, task.metadata], sort_keys=True, default=repr)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
