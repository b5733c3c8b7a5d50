"""Records of the store. Documents are bytes that only their writer understands; the store never parses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.model import TaskState


class NewItem(NamedTuple):
    """The immutable part of an item, written when it is accepted. ``number`` is its submission number.

    ``key`` is the owner's idempotency key, unique per owner. ``repeats`` is the id of the item that this one retries.
    ``blobs`` are the digests of its code, its arguments and its shared values, in order.
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
    """The mutable part of an item, as of its last step. ``is_open``: the item has not ended, or an attempt of it must
    still be cleaned up. ``rest`` holds the fields that no query uses."""

    id: str
    state: TaskState
    attempt: int = 0
    cluster: str | None = None
    fence: int | None = None
    priority: float = 0
    finished_at: float | None = None
    is_open: bool = True
    rest: bytes = b"{}"


class Step(NamedTuple):
    """One state transition of an item; ``number`` counts the item's own transitions, from 1."""

    item_id: str
    number: int
    state: TaskState
    attempt: int
    at: float
    code: str
    sentence: str
    cluster: str | None = None


class StoredDecision(NamedTuple):
    """The placement decision of one attempt. Several items may share one document."""

    item_id: str
    attempt: int
    at: float
    cluster: str | None
    document: bytes


class OperationRecord(NamedTuple):
    """An event of no item: a change of a cluster, or the action of an operator (``user``) on a ``subject``."""

    what: str
    subject: str
    at: float
    user: str | None
    document: bytes


LogEntry: TypeAlias = Step | StoredDecision | OperationRecord
"""Entries of the event log. One counter numbers them all, in the order of writing."""


class EventRecord(NamedTuple):
    """A log entry as read, with its number. Steps and decisions carry the kind, name and owner of their item."""

    number: int
    entry: LogEntry
    kind: str = ""
    name: str = ""
    owner: str = ""


class Outcome(NamedTuple):
    """How an attempt ended. ``digest`` names its value; None if it has none, or if the value stayed in its cluster."""

    item_id: str
    attempt: int
    document: bytes
    digest: str | None = None


class OutputRecord(NamedTuple):
    """A part of the output of an attempt, in the order of printing; ``digest`` names the blob."""

    item_id: str
    attempt: int
    digest: str


class ServingTask(NamedTuple):
    """A task of model serving. ``document`` is its request, and once it has ended its outcome; ``at`` is the time of
    its ``state``; ``instances`` are those to which it was forwarded, the last one last, separated by commas."""

    id: str
    model: str
    owner: str
    submitted_at: float
    fingerprint: int
    state: str
    at: float
    instances: str
    document: bytes


class ServingStatus(NamedTuple):
    """A new state of a serving task; without a ``document`` the stored one stays."""

    state: str
    at: float
    instances: str
    document: bytes | None
    id: str


@dataclass(frozen=True, slots=True)
class FleetState:
    """Operators' decisions about clusters, owners and pools (cordon, pause, limits, quota), by name. Replaces the
    previous one."""

    clusters: Mapping[str, bytes] = field(default_factory=dict)
    owners: Mapping[str, bytes] = field(default_factory=dict)
    pools: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Free bytes on the disk of the store, and bytes that payloads, results and output use of their quota."""

    free_bytes: int
    blob_bytes: int


@dataclass(slots=True)
class Change:
    """One atomic write. ``blobs`` are small blobs by digest; ``putters`` pairs a digest with the user who uploaded it.

    ``settings`` are the control plane's own keys; None removes one. ``next_fence`` only grows. ``forgotten_serving``
    are ids of serving tasks, which are deleted before new ones are added.
    """

    new: list[NewItem] = field(default_factory=list)
    statuses: dict[str, ItemStatus] = field(default_factory=dict)
    entries: list[LogEntry] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    output: list[OutputRecord] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    putters: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, bytes | None] = field(default_factory=dict)
    new_serving: list[ServingTask] = field(default_factory=list)
    serving_statuses: dict[str, ServingStatus] = field(default_factory=dict)
    forgotten_serving: list[str] = field(default_factory=list)
    fleet: FleetState | None = None
    next_fence: int = 0

    def __bool__(self) -> bool:
        return len(self) > 0

    def add(self, later: Change) -> None:
        """Merge a later change into this one; of each item only the latest status is kept."""
        self.new += later.new
        self.statuses.update(later.statuses)
        self.entries += later.entries
        self.outcomes += later.outcomes
        self.output += later.output
        self.blobs.update(later.blobs)
        self.putters += later.putters
        self.settings.update(later.settings)
        self.new_serving += later.new_serving
        self.serving_statuses.update(later.serving_statuses)
        self.forgotten_serving += later.forgotten_serving
        self.fleet = later.fleet or self.fleet
        self.next_fence = max(self.next_fence, later.next_fence)

    def __len__(self) -> int:
        """About how many rows it writes."""
        rows = len(self.new) + len(self.statuses) + len(self.entries) + len(self.outcomes)
        rows += len(self.output) + len(self.blobs) + len(self.putters) + len(self.settings)
        rows += len(self.new_serving) + len(self.serving_statuses) + len(self.forgotten_serving)
        return rows + (self.fleet is not None)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as read."""

    new: NewItem
    status: ItemStatus


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Selects items that meet all given conditions. ``after`` is the number of the last item of the previous page.

    ``since`` and ``until`` (exclusive) limit the time of submission. Order: newest first, or ``oldest_first``.
    """

    states: Sequence[TaskState] = ()
    kind: str | None = None
    owner: str | None = None
    cluster: str | None = None
    after: int | None = None
    limit: int = 100
    name: str | None = None
    id_prefix: str | None = None
    since: float | None = None
    until: float | None = None
    oldest_first: bool = False


class UnfinishedCount(NamedTuple):
    """The number of items of one kind and one owner in one state on one cluster."""

    kind: str
    owner: str
    state: TaskState
    cluster: str | None
    items: int


@dataclass(frozen=True, slots=True)
class ItemPage:
    """One page of a query. ``after`` is the value for the next query; None on the last page."""

    items: tuple[StoredItem, ...]
    after: int | None = None
