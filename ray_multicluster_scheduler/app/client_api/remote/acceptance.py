"""Acceptance: waits until the service has accepted a submission, and reports submissions without an answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.notices import notify, shorten
from ray_multicluster_scheduler.control_plane.runtime.item import Item

TIMEOUT_S = 60.0
NOTIFY_AFTER_S = 1.0
"""How long the exit of a program may wait before it prints a notice."""


class Acceptance:
    """``address`` and ``problem`` return the service's address and last error; ``is_deferred``: was an item not sent
    yet? An item without an answer is not reported as "not accepted", since the service may have received it."""

    def __init__(
        self,
        address: Callable[[], str],
        problem: Callable[[], str],
        is_deferred: Callable[[Item], bool] = lambda _: False,
    ) -> None:
        self._address, self._problem, self._is_deferred = address, problem, is_deferred
        self._abandoned: set[str] = set()
        """Ids already reported as unanswered: the exit of the program does not wait for them again."""

    def wait(self, item: Item) -> None:
        """Wait for one item. Raises SchedulerError on timeout; Ctrl+C ends the wait with a notice."""
        if item.accepted:
            return
        try:
            there = item.wait_accepted(TIMEOUT_S)
        except KeyboardInterrupt:
            self._notify_unaccepted([item])
            raise
        if not there:
            self._abandoned.add(item.id)
            raise SchedulerError(
                f"The service has not confirmed {item.id} within {TIMEOUT_S:g} s: {self._reason()}",
                task_id=item.id,
                next_step=f"it may be accepted nevertheless: check with `{_check_command(item)}`, or submit it again "
                "with the same id. While the program runs, it is retried",
            )

    def wait_at_the_end(self, items: Sequence[Item]) -> None:
        """Wait at program exit until all are accepted or the timeout expires; not if the program was interrupted."""
        left = [item for item in items if not item.accepted and item.id not in self._abandoned]
        if not left:
            return
        # Inside a `with` block that Ctrl+C ends, the KeyboardInterrupt is the exception being handled.
        if not (program.interrupted() or isinstance(sys.exception(), KeyboardInterrupt)):
            try:
                self._wait(left)
            except KeyboardInterrupt:
                self._notify_unaccepted(left)
                raise
        self._notify_unaccepted(left)

    def _wait(self, items: Sequence[Item]) -> None:
        began = time.monotonic()
        if not all(item.wait_accepted(max(0.0, began + NOTIFY_AFTER_S - time.monotonic())) for item in items):
            left = [item.id for item in items if not item.accepted]
            why = f" ({self._problem()})" if self._problem() else ""
            notify(f"waiting for {self._address()} to accept {shorten(left)}, at most {TIMEOUT_S:g} s{why}")
        for item in items:
            item.wait_accepted(max(0.0, began + TIMEOUT_S - time.monotonic()))

    def _notify_unaccepted(self, items: Sequence[Item]) -> None:
        silent = [item for item in items if not item.accepted]
        self._abandoned.update(item.id for item in silent)
        deferred = [item.id for item in silent if self._is_deferred(item)]
        sent = [item for item in silent if item.id not in deferred]
        if deferred:
            notify(f"not sent to {self._address()}, since an argument is not available yet: {shorten(deferred)}")
        if sent:
            names = shorten([one.id for one in sent])
            notify(
                f"not confirmed by {self._address()}: {names}. {self._reason()} It may have been accepted, and run: "
                f"check with `{_check_command(sent[0])}`; submitting it again with the same id is safe"
            )

    def _reason(self) -> str:
        return self._problem() or "It has not answered yet."


def _check_command(item: Item) -> str:
    return f"rmcs job status {item.id}" if item.task.job is not None else f"rmcs explain {item.id}"
