"""Selects the active scheduler for the verbs: the program's shared UnifiedScheduler, or NativeScheduler in a cluster.

A function that refers to a verb loads this module in a worker, so it imports only the standard library and Ray.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, cast

from ray_multicluster_scheduler.common.current_item import CurrentItem, cluster_here, get_current

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

_shared: UnifiedScheduler | None = None
_lock = threading.Lock()


def current() -> CurrentItem | None:
    """The task or job that this code runs in, with its id, attempt, fence and cluster; None outside of any."""
    return get_current()


def inside() -> bool:
    """Does this code run in a job, task or actor of ours on a cluster?"""
    return cluster_here() is not None


def active_scheduler() -> UnifiedScheduler:
    """Return the scheduler whose methods the verbs call. Raises ConfigurationError as :func:`shared`."""
    return shared() if cluster_here() is None else native()


@functools.cache
def native() -> UnifiedScheduler:
    """Return the scheduler that calls Ray on this cluster. A test checks that it has the verbs of UnifiedScheduler."""
    from ray_multicluster_scheduler.app.client_api.in_cluster.scheduler import NativeScheduler  # noqa: PLC0415 - inside only

    return cast("UnifiedScheduler", NativeScheduler())


def shared() -> UnifiedScheduler:
    """Return the shared scheduler, made with the default configuration if needed. Raises ConfigurationError."""
    global _shared  # noqa: PLW0603 - the module-level verbs need one shared object
    with _lock:
        if _shared is None:
            _shared = scheduler_class()()
        return _shared


def has_shared() -> bool:
    """Does a shared scheduler exist?"""
    return _shared is not None


def exchange_shared(fresh: UnifiedScheduler | None) -> UnifiedScheduler | None:
    """Replace or remove the shared scheduler; returns the previous one."""
    global _shared
    with _lock:
        before, _shared = _shared, fresh
        return before


def scheduler_class() -> type[UnifiedScheduler]:
    """UnifiedScheduler; loading it needs packages that a cluster need not have."""
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler  # noqa: PLC0415 - heavy

    return UnifiedScheduler


def _reset_after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    if _shared is not None:
        _shared._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
