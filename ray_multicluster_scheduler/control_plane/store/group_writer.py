"""GroupWriter: one thread that writes, and makes durable at once whatever has come in the meantime."""

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
_MOST_ROWS = 5_000
_AGAIN_S = 1.0

Deed: TypeAlias = Callable[[], Any]
Wish: TypeAlias = tuple[Change | Deed, Future[Any]]


class StoreBusyError(StoreError):
    """Somebody else writes to it just now."""


class GroupWriter:
    """``commit`` writes one change and returns when it is durable.

    If it raises StoreFullError or StoreBusyError, nothing was written, and the same is tried again until it can be;
    nobody overtakes. After any other StoreError nothing is written any more. Any other exception is the fault of a
    single change: those that came with it are written without it.
    """

    def __init__(self, commit: Callable[[Change], int]) -> None:
        self._commit = commit
        self._waiting: deque[Wish] = deque()
        self._news = threading.Condition()
        self._closing = False
        self._over: StoreError | None = None
        self._trouble: str | None = None
        self._listeners: list[Callable[[str | None], object]] = []
        self._thread = threading.Thread(target=self._run, name="rmcs-store", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        return self._trouble

    def on_trouble(self, hear: Callable[[str | None], object]) -> None:
        self._listeners.append(hear)

    def put(self, change: Change | Deed) -> Future[Any]:
        """In its turn: write it, or do it where nobody else writes. Done when it is durable."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # what will be written cannot be cancelled
        with self._news:
            if self._over is not None:
                future.set_exception(self._over)
            elif self._closing:
                future.set_exception(StoreError("The store is closed."))
            else:
                self._waiting.append((change, future))
                self._news.notify()
        return future

    def close(self) -> None:
        """When all is written; at once if there is no room for it."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._waiting and not self._closing:
                    self._news.wait()
                if not self._waiting:
                    return
                group = self._next_group()
            try:
                self._write(group)
            except StoreError as error:
                self._give_up(error, group)
            except BaseException as error:  # noqa: BLE001 - a defect of ours: nobody may wait for a thread that is gone
                _log.exception("the writer of the store has a defect")
                self._give_up(StoreError(f"The store has a defect: {error!r}."), group)

    def _next_group(self) -> list[Wish]:
        """Changes up to the next deed, or a deed alone."""
        group = [self._waiting.popleft()]
        rows = _rows(group[0][0])
        while self._waiting and rows < _MOST_ROWS and isinstance(group[0][0], Change):
            if not isinstance(self._waiting[0][0], Change):
                break
            group.append(self._waiting.popleft())
            rows += _rows(group[-1][0])
        return group

    def _write(self, group: list[Wish]) -> None:
        if len(group) == 1:
            self._write_one(*group[0])
            return
        together = Change()
        for change, _ in group:
            assert isinstance(change, Change)
            together.add(change)
        try:
            number = self._until_it_can_be(lambda: self._commit(together))
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - the fault of one of them, which will hear of it
            for change, future in group:
                self._write_one(change, future)
            return
        number -= len(together.told)
        for change, future in group:
            assert isinstance(change, Change)
            number += len(change.told)
            future.set_result(number)

    def _write_one(self, change: Change | Deed, future: Future[Any]) -> None:
        try:
            deed = change if not isinstance(change, Change) else lambda: self._commit(change)
            done = self._until_it_can_be(deed)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whoever wanted it hears of it
            future.set_exception(error)
        else:
            future.set_result(done)

    def _until_it_can_be(self, deed: Deed) -> Any:
        while True:
            try:
                done = deed()
            except (StoreFullError, StoreBusyError) as error:
                self._tell(error.message)
                with self._news:
                    if self._closing or self._news.wait_for(lambda: self._closing, timeout=_AGAIN_S):
                        raise
            else:
                self._tell(None)
                return done

    def _tell(self, trouble: str | None) -> None:
        if trouble == self._trouble:
            return
        self._trouble = trouble
        for hear in self._listeners:
            try:
                hear(trouble)
            except Exception:  # noqa: BLE001 - theirs; what is written here does not hang on it
                _log.exception("somebody who wanted to hear of the store's troubles could not be told")

    def _give_up(self, error: StoreError, group: list[Wish]) -> None:
        with self._news:
            self._over = error
            group += self._waiting
            self._waiting.clear()
        self._tell(error.message)
        for _, future in group:
            if not future.done():
                future.set_exception(error)


def _rows(change: Change | Deed) -> int:
    return len(change) if isinstance(change, Change) else 0
