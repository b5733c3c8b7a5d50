"""Acceptance: waiting until a service has taken what a program submits, and what is said where that was not heard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.notices import notify, shorten
from ray_multicluster_scheduler.control_plane.runtime.item import Item

TIMEOUT_S = 60.0
SAY_AFTER_S = 1.0
"""So long the end of a program may wait without a word."""


class Acceptance:
    """``address`` and ``trouble`` say who is asked, and why he takes nothing just now. ``is_deferred``: not sent yet.

    An item without an answer is never called "not accepted": the service may have it, and write it when it can.
    """

    def __init__(
        self,
        address: Callable[[], str],
        trouble: Callable[[], str],
        is_deferred: Callable[[Item], bool] = lambda _: False,
    ) -> None:
        self._address, self._trouble, self._is_late = address, trouble, is_deferred
        self._given_up: set[str] = set()
        """Whoever waited for these was told: the end of the program does not wait for them a second time."""

    def wait(self, item: Item) -> None:
        """Raises SchedulerError if it is not heard for long. Ctrl+C ends it at once, and says how to go on."""
        if item.accepted:
            return
        try:
            there = item.wait_accepted(TIMEOUT_S)
        except KeyboardInterrupt:
            self._say([item])
            raise
        if not there:
            self._given_up.add(item.id)
            raise SchedulerError(
                f"The service has not said within {TIMEOUT_S:g} s that it accepted {item.id}: {self._why()}",
                task_id=item.id,
                next_step=f"it may be accepted all the same: look with `{_look(item)}`, or submit it again with the "
                "same id. A program that goes on tries it again by itself",
            )

    def wait_at_the_end(self, items: Sequence[Item]) -> None:
        """Until all of them are accepted, or for so long; an interrupted program does not wait."""
        left = [item for item in items if not item.accepted and item.id not in self._given_up]
        if not left:
            return
        # Within a `with` that an interrupt ends, that is the error that is handled now.
        if not (program.interrupted() or isinstance(sys.exception(), KeyboardInterrupt)):
            try:
                self._wait(left)
            except KeyboardInterrupt:
                self._say(left)
                raise
        self._say(left)

    def _wait(self, items: Sequence[Item]) -> None:
        began = time.monotonic()
        if not all(item.wait_accepted(max(0.0, began + SAY_AFTER_S - time.monotonic())) for item in items):
            left = [item.id for item in items if not item.accepted]
            why = f" ({self._trouble()})" if self._trouble() else ""
            notify(f"waiting for {self._address()} to accept {shorten(left)}, at most {TIMEOUT_S:g} s{why}")
        for item in items:
            item.wait_accepted(max(0.0, began + TIMEOUT_S - time.monotonic()))

    def _say(self, items: Sequence[Item]) -> None:
        silent = [item for item in items if not item.accepted]
        self._given_up.update(item.id for item in silent)
        here: list[Item] = []
        sent: list[Item] = []
        for item in silent:
            (here if self._is_late(item) else sent).append(item)
        if here:
            names = shorten([one.id for one in here])
            notify(f"not sent to {self._address()}, since an argument is not there yet: {names}")
        if sent:
            names = shorten([one.id for one in sent])
            notify(
                f"not known to be accepted by {self._address()}: {names}. {self._why()} It may have been accepted, and "
                f"run: look with `{_look(sent[0])}`; to submit it again with the same id is safe"
            )

    def _why(self) -> str:
        return self._trouble() or "No answer has come yet."


def _look(item: Item) -> str:
    return f"rmcs job status {item.id}" if item.task.job is not None else f"rmcs explain {item.id}"
