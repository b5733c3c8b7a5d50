"""Packages for a cluster without a dashboard: its connector stores them, as Ray Client itself would."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import Timeouts

_LIMITS = Timeouts()
Ask = Callable[..., Awaitable[Any]]


class ConnectorPackageStore:
    """A PackageStore. ``ask`` gives an order to the cluster's connector, and raises ClusterConnectionError."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name, self._ask = name, ask

    @property
    def name(self) -> str:
        return self._name

    async def package_exists(self, uri: str) -> bool:
        return bool(await self._ask(o.HAS_PACKAGE, uri=uri))

    async def upload_package(self, uri: str, source: Path | bytes) -> None:
        """The connector reads the file: megabytes do not belong into a pipe of short lines."""
        if isinstance(source, Path):
            await self._put(uri, str(source), (await asyncio.to_thread(source.stat)).st_size)
            return
        with tempfile.NamedTemporaryFile(prefix="rmcs-package-") as file:
            file.write(source)
            file.flush()
            await self._put(uri, file.name, len(source))

    async def _put(self, uri: str, path: str, size: int) -> None:
        """As patient as for a dashboard."""
        patience_s = _LIMITS.upload_base + _LIMITS.upload_per_mib * size / 1024**2
        await self._ask(o.PUT_PACKAGE, patience_s=patience_s, uri=uri, path=path)
