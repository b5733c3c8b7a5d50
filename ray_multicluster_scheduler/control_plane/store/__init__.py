"""The durable record of a control plane: one interface (:class:`Store`) and its implementation on SQLite.

``scheduler_core`` and the layers above import it; it imports only ``common``. Start with ``interface.py`` and
``records.py``, then ``sqlite_store.py``. Each exported name is loaded when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.store.interface import Store
    from ray_multicluster_scheduler.control_plane.store.records import (
        Change,
        EventRecord,
        FleetState,
        ItemPage,
        ItemQuery,
        ItemStatus,
        LogEntry,
        NewItem,
        OperationRecord,
        Outcome,
        OutputRecord,
        ServingStatus,
        ServingTask,
        Step,
        StorageUsage,
        StoredDecision,
        StoredItem,
        UnfinishedCount,
    )
    from ray_multicluster_scheduler.control_plane.store.sqlite_store import SqliteStore
else:
    from ray_multicluster_scheduler.common.lazy_imports import lazy_attributes

    __getattr__ = lazy_attributes(
        __name__,
        {
            "interface": "Store",
            "records": (
                "Change EventRecord FleetState ItemPage ItemQuery ItemStatus LogEntry NewItem OperationRecord Outcome "
                "OutputRecord ServingStatus ServingTask Step StorageUsage StoredDecision StoredItem UnfinishedCount"
            ),
            "sqlite_store": "SqliteStore",
        },
    )

__all__ = [
    "Change",
    "EventRecord",
    "FleetState",
    "ItemPage",
    "ItemQuery",
    "ItemStatus",
    "LogEntry",
    "NewItem",
    "OperationRecord",
    "Outcome",
    "OutputRecord",
    "ServingStatus",
    "ServingTask",
    "SqliteStore",
    "Step",
    "StorageUsage",
    "Store",
    "StoredDecision",
    "StoredItem",
    "UnfinishedCount",
]
