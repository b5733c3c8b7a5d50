"""Store: what the control plane asks of its durable record, whatever keeps it."""

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
    Step,
    StorageUsage,
    StoredDecision,
    StoredItem,
    UnfinishedCount,
)
from ray_multicluster_scheduler.control_plane.store.secret_encryption import SecretCipher


class Store(Protocol):
    """Safe from any thread. Whoever opens it last is its leader: what an earlier one still writes is refused.

    Every method may raise StoreError.
    """

    epoch: int
    """Grows with every leader, and is written with every row."""

    control_plane: str
    """Made once, with the store: whose jobs and agents are ours."""

    cipher: SecretCipher
    """For secrets in documents: whoever writes one seals them first."""

    # ---- writing

    def write(self, change: Change) -> Future[int]:
        """Make it durable. Done, with the number of the last thing that it tells, only after it is; changes are written
        in the order they came. While that is not possible it is tried again and again, and :attr:`trouble` says so.

        The future raises StoreError when this store may not write any more, and anything else if only this change
        cannot be written. It cannot be cancelled.
        """

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written just now; None when all is well."""

    def on_trouble(self, hear: Callable[[str | None], object]) -> None:
        """Tell of each change of :attr:`trouble`, from some thread. It must return at once."""

    def on_commit(self, hear: Callable[[float], object]) -> None:
        """Tell how many seconds it took to make something durable, each time, from one thread. It must return at once,
        and may not raise."""

    def room(self) -> StorageUsage:
        """How much there is, and how much is taken. Looks at the disk."""

    # ---- reading

    def owed(self) -> Iterator[StoredItem]:
        """All items that are not over, or of which something is still to be done, in the order of submission."""

    def item(self, item_id: str) -> StoredItem | None:
        """None if it was never here, or is no longer; see :meth:`expired`."""

    def known(self, item_ids: Sequence[str]) -> set[str]:
        """Which of these are here, or were and are forgotten."""

    def by_key(self, owner: str, key: str) -> str | None:
        """The id of the item that its owner calls so."""

    def repetitions(self, item_id: str, most: int) -> list[str]:
        """The ids of the newest items that repeat this one, at most so many, oldest first."""

    def items(self, wanted: ItemQuery) -> ItemPage:
        """Newest first, unless they are wanted the other way round."""

    def first_run(self, owner: str | None) -> float | None:
        """When the first of all that is over and was seen to run was submitted; of one owner, if one is given."""

    def unfinished(self) -> list[UnfinishedCount]:
        """How many items are not over, by what they have in common."""

    def steps(self, item_id: str) -> list[Step]:
        """Its history, oldest first."""

    def told_after(self, number: int, limit: int) -> list[EventRecord]:
        """Steps, decisions and notes of everything, with their numbers. Those are given without gaps and never again;
        those of items that were forgotten, and of old notes, are missing."""

    @property
    def last_told(self) -> int:
        """The number of the last one; 0 at the beginning."""

    def decisions(self, item_id: str) -> list[StoredDecision]:
        """Oldest first."""

    def outcome(self, item_id: str) -> Outcome | None:
        """Of its newest attempt that has one."""

    def output(self, item_id: str, attempt: int) -> list[str | None]:
        """The digests of what it printed, oldest first; None stands for what was stripped."""

    def fleet(self) -> FleetState: ...

    def sent_since(self, at: float) -> list[tuple[str, str, float]]:
        """Of what was first sent to a cluster since then and is over: for each kind and cluster the id of the last one,
        where it was sent, and when; of gangs each one, since they may be of tasks or of actors."""

    def settings(self, begin: str) -> dict[str, bytes]:
        """Those whose keys begin so."""

    @property
    def next_fence(self) -> int:
        """No attempt has had this one, nor a larger one."""

    @property
    def next_number(self) -> int:
        """No item has had this one, nor a larger one."""

    # ---- retention

    def strip(self, ended_before: float, needed: Collection[str] = ()) -> None:
        """Payloads of items that ended before then, their values and output, may go; what happened to them is still
        known. The values of the items that are ``needed`` stay."""

    def expire(self, ended_before: float, keep: int, needed: Collection[str] = ()) -> int:
        """Forget notes and items that ended before then, and all but the ``keep`` newest of those that are over, but
        none that is ``needed``. Returns how many; of those only that they once were is known."""

    def forget(self, item_id: str, needed: Collection[str] = ()) -> bool:
        """This one, which is over, now: from then on it is expired. False if it is not there, not over, of which
        something is still to be done, or ``needed``."""

    def expired(self, item_id: str) -> bool:
        """Was it here, and is forgotten?"""

    # ---- blobs

    def reserve(self, blobs: Mapping[str, int], *, owed: bool = False) -> None:
        """Keep room for these, by digest and size, which are about to be written with a change. What is ``owed`` to
        somebody, as the value of work that is done, is taken beyond all limits.

        Raises TaskSubmissionError for one that is too large, StoreFullError if there is no room for all of them.
        """

    def hold(self, digests: Iterable[str]) -> list[str]:
        """Let nobody drop these before the change that names them is written. Returns those that are not here."""

    def put_blob(self, data: bytes, *, owed: bool = False, user: str | None = None) -> str:
        """Keep it, durable when this returns, for a change that will name it; and that this ``user`` has put it, until
        it is dropped. Returns its digest. A small one may as well be written with that change. Raises as
        :meth:`reserve` does, and at once while there is trouble."""

    def blob(self, digest: str) -> bytes | None:
        """Raises StoreError for one that is not what it was."""

    def blob_pieces(self, digest: str) -> tuple[int, Iterator[bytes]] | None:
        """A large one piece by piece, with its size; None for one that :meth:`blob` has at hand, or nobody. Iterating
        may raise StoreError before the end, for one that is not what it was."""

    def names_blob(self, owner: str, digest: str) -> bool:
        """Is it a payload, a value or output of an item of this owner, or has he put it?"""

    def drop_blobs(self) -> int:
        """Remove blobs that nothing names and that nobody has put or held lately: since the call before the last one.
        Returns how many."""

    def close(self) -> None:
        """After what was given to :meth:`write` is durable, or cannot be; whoever still reads is waited for."""
