"""What is written and read. Documents are bytes that only their writer understands: the store never looks inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.model import TaskState


class NewItem(NamedTuple):
    """An item as it was accepted; nothing of this ever changes. ``number`` is that of its submission.

    ``key`` is its owner's own name for it, if it has one; no two items of an owner have the same. ``repeats`` is the id
    of the item that it is a retry of. ``blobs`` are the digests of its code, its arguments and the values shared with
    it, in their order.
    """

    id: str
    number: int
    kind: str
    name: str
    owner: str
    submitted_at: float
    description: bytes
    key: str | None = None
    repeats: str | None = None
    blobs: tuple[str, ...] = ()


class ItemStatus(NamedTuple):
    """What changes of an item, as of its last step. ``owed``: it is not over, or something of it is still to be done.
    ``rest`` is what nobody searches for."""

    id: str
    state: TaskState
    attempt: int = 0
    cluster: str | None = None
    fence: int | None = None
    priority: int = 0
    finished_at: float | None = None
    owed: bool = True
    rest: bytes = b"{}"


class Step(NamedTuple):
    """One transition of an item; ``number`` counts the item's own, from 1."""

    item_id: str
    number: int
    state: TaskState
    attempt: int
    at: float
    code: str
    sentence: str
    cluster: str | None = None


class StoredDecision(NamedTuple):
    """Where one attempt went, and why. Several items may share one document."""

    item_id: str
    attempt: int
    at: float
    cluster: str | None
    document: bytes


class OperationRecord(NamedTuple):
    """Anything else that happened: ``what``, to which ``subject``, by which ``user`` if it was somebody."""

    what: str
    subject: str
    at: float
    user: str | None
    document: bytes


LogEntry: TypeAlias = Step | StoredDecision | OperationRecord
"""What is numbered, over everything, in the order in which it was written."""


class EventRecord(NamedTuple):
    """One of those as it was read. Steps and decisions say what kind of item they are of, its name and its owner."""

    number: int
    told: LogEntry
    kind: str = ""
    name: str = ""
    owner: str = ""


class Outcome(NamedTuple):
    """How an attempt ended. ``digest`` names its value; None if it has none, or left it in its cluster."""

    item_id: str
    attempt: int
    document: bytes
    digest: str | None = None


class OutputRecord(NamedTuple):
    """What an attempt printed since the last time that something of it was written; ``digest`` names the blob."""

    item_id: str
    attempt: int
    digest: str


@dataclass(frozen=True, slots=True)
class FleetState:
    """What people said of clusters and owners, by name. Replaces all that was said before."""

    clusters: Mapping[str, bytes] = field(default_factory=dict)
    owners: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Bytes that are free where the record is, and that payloads, results and output take of their quota."""

    free_bytes: int
    blob_bytes: int


@dataclass(slots=True)
class Change:
    """All of it becomes durable, or nothing. ``blobs`` are small ones by their digests, ``putters`` digests with users
    who put them. ``settings`` are what the
    control plane keeps for itself; None removes one. ``next_fence`` only grows."""

    new: list[NewItem] = field(default_factory=list)
    now: dict[str, ItemStatus] = field(default_factory=dict)
    told: list[LogEntry] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    printed: list[OutputRecord] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    putters: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, bytes | None] = field(default_factory=dict)
    fleet: FleetState | None = None
    next_fence: int = 0

    def __bool__(self) -> bool:
        return len(self) > 0

    def add(self, later: Change) -> None:
        """What came after it; of an item only what holds last is kept."""
        self.new += later.new
        self.now.update(later.now)
        self.told += later.told
        self.outcomes += later.outcomes
        self.printed += later.printed
        self.blobs.update(later.blobs)
        self.putters += later.putters
        self.settings.update(later.settings)
        self.fleet = later.fleet or self.fleet
        self.next_fence = max(self.next_fence, later.next_fence)

    def __len__(self) -> int:
        """About how many rows it writes."""
        rows = len(self.new) + len(self.now) + len(self.told) + len(self.outcomes)
        rows += len(self.printed) + len(self.blobs) + len(self.putters) + len(self.settings)
        return rows + (self.fleet is not None)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as it was read."""

    new: NewItem
    now: ItemStatus


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Which items: those that meet all that is given. ``after`` is the number of the last one that was seen, ``begins``
    how its id does; ``since`` and ``until`` (not included) are when it was submitted. They come newest first, or
    ``oldest_first``."""

    states: Sequence[TaskState] = ()
    kind: str | None = None
    owner: str | None = None
    cluster: str | None = None
    after: int | None = None
    limit: int = 100
    name: str | None = None
    begins: str | None = None
    since: float | None = None
    until: float | None = None
    oldest_first: bool = False


class UnfinishedCount(NamedTuple):
    """How many items of one kind and one owner are in one state on one cluster."""

    kind: str
    owner: str
    state: TaskState
    cluster: str | None
    items: int


@dataclass(frozen=True, slots=True)
class ItemPage:
    """In the order that was asked for. ``after`` is what to ask with for more; None at the end."""

    items: tuple[StoredItem, ...]
    after: int | None = None
