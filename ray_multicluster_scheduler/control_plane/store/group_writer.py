"""GroupWriter: a thread that makes changes durable, many in one commit (group commit)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.store.records import Change

_log = get_logger(__name__)
_MAX_ROWS = 5_000
_RETRY_S = 1.0

Action: TypeAlias = Callable[[], Any]
Job: TypeAlias = tuple[Change | Action, Future[Any]]


class StoreBusyError(StoreError):
    """Another process is writing to the database."""


class GroupWriter:
    """``commit`` writes one change and returns when it is durable.

    If it raises StoreFullError or StoreBusyError, nothing was written and the same change is retried until it succeeds;
    the order is kept. After any other StoreError nothing is written any more. Any other exception is the fault of a
    single change: the others of its group are written without it.
    """

    def __init__(self, commit: Callable[[Change], int]) -> None:
        self._commit = commit
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failed: StoreError | None = None
        self._write_problem: str | None = None
        self._callbacks: list[Callable[[str | None], object]] = []
        self._thread = threading.Thread(target=self._run, name="rmcs-store", daemon=True)
        self._thread.start()

    @property
    def write_problem(self) -> str | None:
        return self._write_problem

    def on_write_problem(self, callback: Callable[[str | None], object]) -> None:
        self._callbacks.append(callback)

    def put(self, job: Change | Action) -> Future[Any]:
        """Queue a change, or an action to run on the writer's thread. The future completes when it is durable."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a queued write cannot be cancelled
        with self._changed:
            if self._failed is not None:
                future.set_exception(self._failed)
            elif self._closing:
                future.set_exception(StoreError("The store is closed."))
            else:
                self._queue.append((job, future))
                self._changed.notify()
        return future

    def close(self) -> None:
        """Write what is queued, then stop; stop at once if the disk is full."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                group = self._next_group()
            try:
                self._write(group)
            except StoreError as error:
                self._fail(error, group)
            except BaseException as error:  # noqa: BLE001 - a defect of ours: callers must not wait for a dead thread
                _log.exception("the writer of the store has a defect")
                self._fail(StoreError(f"The store has a defect: {error!r}."), group)

    def _next_group(self) -> list[Job]:
        """Changes up to the next action, or one action."""
        group = [self._queue.popleft()]
        rows = _rows(group[0][0])
        while self._queue and rows < _MAX_ROWS and isinstance(group[0][0], Change):
            if not isinstance(self._queue[0][0], Change):
                break
            group.append(self._queue.popleft())
            rows += _rows(group[-1][0])
        return group

    def _write(self, group: list[Job]) -> None:
        if len(group) == 1:
            self._write_one(*group[0])
            return
        together = Change()
        for change, _ in group:
            assert isinstance(change, Change)
            together.add(change)
        try:
            number = self._with_retries(lambda: self._commit(together))
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - the fault of one of them, whose future gets the exception
            for change, future in group:
                self._write_one(change, future)
            return
        number -= len(together.entries)
        for change, future in group:
            assert isinstance(change, Change)
            number += len(change.entries)
            future.set_result(number)

    def _write_one(self, job: Change | Action, future: Future[Any]) -> None:
        try:
            action = job if not isinstance(job, Change) else lambda: self._commit(job)
            result = self._with_retries(action)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - passed to the caller
            future.set_exception(error)
        else:
            future.set_result(result)

    def _with_retries(self, action: Action) -> Any:
        while True:
            try:
                result = action()
            except (StoreFullError, StoreBusyError) as error:
                self._report(error.message)
                with self._changed:
                    if self._closing or self._changed.wait_for(lambda: self._closing, timeout=_RETRY_S):
                        raise
            else:
                self._report(None)
                return result

    def _report(self, problem: str | None) -> None:
        if problem == self._write_problem:
            return
        self._write_problem = problem
        for callback in self._callbacks:
            try:
                callback(problem)
            except Exception:  # noqa: BLE001 - a defect of the callback; writing goes on
                _log.exception("a callback for write problems of the store failed")

    def _fail(self, error: StoreError, group: list[Job]) -> None:
        with self._changed:
            self._failed = error
            group += self._queue
            self._queue.clear()
        self._report(error.message)
        for _, future in group:
            if not future.done():
                future.set_exception(error)


def _rows(job: Change | Action) -> int:
    return len(job) if isinstance(job, Change) else 0
