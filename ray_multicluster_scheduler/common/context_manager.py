"""ClusterContextManager: the cluster that submissions of this thread or asyncio task prefer."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ray_multicluster_scheduler.common.exception import ConfigurationError

ENVIRONMENT_VARIABLE = "RMCS_CLUSTER"

_preferred: contextvars.ContextVar[str | None] = contextvars.ContextVar("rmcs_cluster", default=None)


class ClusterContextManager:
    """Set, get and clear the preferred cluster; per thread and per asyncio task.

    An explicit ``preferred_cluster=`` wins over it, and it wins over the environment.
    """

    @staticmethod
    def set(cluster: str) -> None:
        """Prefer this cluster from now on. Raises ConfigurationError for an invalid name."""
        _preferred.set(_checked(cluster))

    @staticmethod
    def get() -> str | None:
        """The preferred cluster that was set, or else the one of the environment variable."""
        return _preferred.get() or os.environ.get(ENVIRONMENT_VARIABLE) or None

    @staticmethod
    def clear() -> None:
        """Prefer no cluster."""
        _preferred.set(None)

    @staticmethod
    @contextmanager
    def use(cluster: str) -> Iterator[None]:
        """``with ClusterContextManager.use("mac"): …``"""
        token = _preferred.set(_checked(cluster))
        try:
            yield
        finally:
            _preferred.reset(token)


def _checked(cluster: object) -> str:
    if not isinstance(cluster, str) or not cluster:
        raise ConfigurationError(f"{cluster!r} is not the name of a cluster.", next_step="give its name as text")
    return cluster
