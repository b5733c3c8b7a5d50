"""Store: what the control plane asks of its durable record, whatever keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol

from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    Decided,
    FleetNow,
    Outcome,
    Page,
    Step,
    StoredItem,
    Wanted,
)


class Store(Protocol):
    """Safe from any thread. Whoever opens it last is its leader: what an earlier one still writes is refused."""

    epoch: int
    """Grows with every leader, and is written with every row."""

    def write(self, change: Change) -> Future[int]:
        """Make it durable. Done, with the number of the last step, only after it is; changes are written in the order
        they came. While there is no room it is tried again and again, and :attr:`trouble` says so.

        Raises StoreFullError at once if there is no room for its blobs; the future raises StoreError when this store
        may not write any more.
        """

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written just now; None when all is well."""

    def on_trouble(self, hear: Callable[[str | None], object]) -> None:
        """Tell of each change of :attr:`trouble`, from some thread."""

    def unfinished(self) -> Iterator[StoredItem]:
        """All items that are not over, in the order of submission."""

    def item(self, item_id: str) -> StoredItem | None:
        """None if it was never here, or is no longer; see :meth:`expired`."""

    def items(self, wanted: Wanted) -> Page:
        """Newest first."""

    def steps(self, item_id: str) -> list[Step]:
        """Its history, oldest first."""

    def steps_after(self, number: int, limit: int) -> list[tuple[int, Step]]:
        """The history of everything, with its numbers, which have no gaps."""

    def decisions(self, item_id: str) -> list[Decided]:
        """Oldest first."""

    def outcome(self, item_id: str) -> Outcome | None:
        """Of its newest attempt that has one."""

    def fleet(self) -> FleetNow: ...

    @property
    def next_fence(self) -> int:
        """No attempt has had this one, nor a larger one."""

    @property
    def next_number(self) -> int:
        """No item has had this one, nor a larger one."""

    def expire(self, ended_before: float, keep: int) -> int:
        """Forget items that ended before then, and all but the ``keep`` newest of those that are over. Returns how
        many; of those only that they once were is known."""

    def expired(self, item_id: str) -> bool:
        """Was it here, and is forgotten?"""

    def put_blob(self, data: bytes) -> str:
        """Keep it, durable when this returns, until :meth:`drop_blobs` finds that nothing names it. Returns its digest.
        A small one may as well be written with the change that names it.

        Raises PayloadTooLargeError, StoreFullError.
        """

    def blob(self, digest: str) -> bytes | None: ...

    def drop_blobs(self) -> int:
        """Remove blobs that nothing names and that nobody has put lately: since the call before the last one. Returns
        how many."""

    def close(self) -> None:
        """After what was given to :meth:`write` is durable, or cannot be. Nothing is lost either way."""
