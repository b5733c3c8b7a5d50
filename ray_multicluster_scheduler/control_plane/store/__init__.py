"""The durable record: one interface (:class:`Store`), and SQLite behind it."""

from ray_multicluster_scheduler.control_plane.store.interface import Store
from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    Decided,
    FleetNow,
    Happened,
    ItemNow,
    NewItem,
    Note,
    Outcome,
    Page,
    Printed,
    Room,
    Step,
    StoredItem,
    Told,
    Unfinished,
    Wanted,
)
from ray_multicluster_scheduler.control_plane.store.sqlite_store import SqliteStore

__all__ = [
    "Change",
    "Decided",
    "FleetNow",
    "Happened",
    "ItemNow",
    "NewItem",
    "Note",
    "Outcome",
    "Page",
    "Printed",
    "Room",
    "SqliteStore",
    "Step",
    "Store",
    "StoredItem",
    "Told",
    "Unfinished",
    "Wanted",
]
