"""Store: the interface of the durable record. The control plane depends on this, not on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    EventRecord,
    FleetState,
    ItemPage,
    ItemQuery,
    Outcome,
    ServingTask,
    Step,
    StorageUsage,
    StoredDecision,
    StoredItem,
    UnfinishedCount,
)
from ray_multicluster_scheduler.control_plane.store.secret_encryption import SecretCipher


class Store(Protocol):
    """Thread-safe. The last process to open it is its leader; writes of earlier leaders are refused.

    Every method may raise StoreError.
    """

    epoch: int
    """Grows with every leader, and is written with every row."""

    control_plane: str
    """The id of this control plane, made once with the store; marks the jobs and agents that belong to it."""

    cipher: SecretCipher
    """Encrypts secrets in documents; writers of documents call it first."""

    # ---- writing

    def write(self, change: Change) -> Future[int]:
        """Write a change durably. The future completes after the commit, with the number of the last log entry.

        Changes are written in the order of the calls. While the disk is full or the database busy, the write is
        retried; :attr:`write_problem` has the reason. The future raises StoreError when this store may not write any
        more, and anything else if only this change cannot be written. It cannot be cancelled.
        """

    @property
    def write_problem(self) -> str | None:
        """Why nothing can be written now; None when writing works."""

    def on_write_problem(self, callback: Callable[[str | None], object]) -> None:
        """Call back on each change of :attr:`write_problem`, from some thread. The callback must return at once."""

    def on_commit(self, callback: Callable[[float], object]) -> None:
        """Call back with the seconds that each commit took, from one thread. It must return at once, and not raise."""

    def usage(self) -> StorageUsage:
        """Free space on the disk, and space used by blobs. Reads the file system."""

    # ---- reading

    def open_items(self) -> Iterator[StoredItem]:
        """All items that have not ended or still need clean-up, in the order of submission."""

    def item(self, item_id: str) -> StoredItem | None:
        """None if the id is unknown or expired; see :meth:`expired`."""

    def known_ids(self, item_ids: Sequence[str]) -> set[str]:
        """Those of these ids that are stored or expired."""

    def id_by_key(self, owner: str, key: str) -> str | None:
        """The id of the item with this idempotency key of this owner."""

    def retries_of(self, item_id: str, most: int) -> list[str]:
        """The ids of the newest items that retry this one, at most so many, oldest first."""

    def items(self, query: ItemQuery) -> ItemPage:
        """One page of items."""

    def oldest_completed_run(self, owner: str | None) -> float | None:
        """The earliest time of submission among ended items that were seen to run; of one owner, if given."""

    def count_unfinished(self) -> list[UnfinishedCount]:
        """Counts of items that have not ended."""

    def steps(self, item_id: str) -> list[Step]:
        """The history of an item, oldest first."""

    def events_after(self, number: int, limit: int) -> list[EventRecord]:
        """The log entries after this number. Numbers have no gaps and are never reused; entries of expired items and
        old operation records are missing."""

    @property
    def last_event_number(self) -> int:
        """The number of the last log entry; 0 at the beginning."""

    def decisions(self, item_id: str) -> list[StoredDecision]:
        """Oldest first."""

    def outcome(self, item_id: str) -> Outcome | None:
        """The outcome of the newest attempt that has one."""

    def output(self, item_id: str, attempt: int) -> list[str | None]:
        """The digests of the parts of the output, oldest first; None stands for an expired part."""

    def fleet(self) -> FleetState: ...

    def last_dispatches_since(self, at: float) -> list[tuple[str, str, float]]:
        """Item id, cluster and time of the last first dispatch since then, per kind and cluster, among ended items. Of
        gangs every one, since their members may be tasks or actors."""

    def settings(self, prefix: str) -> dict[str, bytes]:
        """The control plane's own settings with this key prefix."""

    def serving_tasks(self) -> Iterator[ServingTask]:
        """All tasks of model serving, in the order of submission."""

    @property
    def next_fence(self) -> int:
        """No attempt has had this fence or a larger one."""

    @property
    def next_number(self) -> int:
        """No item has had this number or a larger one."""

    # ---- retention

    def expire_payloads(self, ended_before: float, needed: Collection[str] = ()) -> None:
        """Release payloads, values and output of items that ended before then; their history stays. Values of the items
        in ``needed`` stay."""

    def expire(self, ended_before: float, keep: int, needed: Collection[str] = ()) -> int:
        """Delete operation records and items that ended before then, and all ended items but the ``keep`` newest. None
        that is ``needed`` is deleted. Keeps a hash of each id. Returns how many items were deleted."""

    def forget(self, item_id: str, needed: Collection[str] = ()) -> bool:
        """Expire one ended item now. False if it is unknown, still open, or ``needed``."""

    def expired(self, item_id: str) -> bool:
        """Whether an item of this id was stored and has expired."""

    # ---- blobs

    def reserve(self, blobs: Mapping[str, int], *, beyond_quota: bool = False) -> None:
        """Reserve space for blobs (size by digest) that the next change writes. ``beyond_quota`` ignores all limits; it
        is for results of work that is done.

        Raises TaskSubmissionError for one that is too large, StoreFullError if all together exceed the quota.
        """

    def pin_blobs(self, digests: Iterable[str]) -> list[str]:
        """Protect blobs from deletion until the change that names them is written. Returns those that are missing."""

    def put_blob(
        self, data: bytes, *, beyond_quota: bool = False, user: str | None = None, digest: str | None = None
    ) -> str:
        """Store a blob durably for a later change, and record that ``user`` uploaded it. Returns its digest, which is
        computed unless it is given.

        Small blobs may be written with the change instead. Raises as :meth:`reserve` does, and at once while there is
        a write problem.
        """

    def blob(self, digest: str) -> bytes | None:
        """Raises StoreError for a damaged blob."""

    def blob_pieces(self, digest: str) -> tuple[int, Iterator[bytes]] | None:
        """Size and pieces of a large blob, else None. For a damaged blob the iterator raises StoreError at last."""

    def owns_blob(self, owner: str, digest: str) -> bool:
        """Whether the blob is a payload, a value or output of an item of this owner, or was uploaded by this owner."""

    def delete_unused_blobs(self) -> int:
        """Delete blobs without references, unless put or pinned since the call before the last. Returns how many."""

    def close(self) -> None:
        """Finish pending writes, if they can be written, wait for readers, and close."""
