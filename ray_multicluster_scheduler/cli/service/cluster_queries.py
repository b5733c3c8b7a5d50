"""The current clusters of a service, for commands that must not start anything.

A cluster without a dashboard reports its state only through a gateway, and a refresh would start one there. So such a
cluster is shown with its last known state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.cli.exit_codes import NotFoundError
from ray_multicluster_scheduler.cli.service.client import Service, api_path

_CONCURRENT = 8


def needs_gateway(row: Mapping[str, Any]) -> bool:
    """Its state is stale, and a refresh would start a gateway there."""
    return bool(row.get("stale")) and not row.get("dashboard")


def current_clusters(service: Service, *, refresh_all: bool = False) -> list[dict[str, Any]]:
    """All clusters; those whose state is stale are refreshed, or all."""
    rows: list[dict[str, Any]] = service.get(api_path("clusters"))["clusters"]
    wanted = [row for row in rows if (refresh_all or row.get("stale")) and row.get("dashboard")]
    if not wanted:
        return rows
    if all(row.get("dashboard") for row in rows):
        return list(service.get(api_path("clusters"), refresh=True)["clusters"])
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_CONCURRENT) as pool:
        answers = pool.map(lambda row: _refreshed_row(service, row), wanted)
        updates = {str(row["name"]): answer for row, answer in zip(wanted, answers, strict=True)}
    merged = (updates.get(str(row["name"]), row) for row in rows)
    return [row for row in merged if row is not None]


def _refreshed_row(service: Service, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same fields, current; None: the cluster has been removed."""
    try:
        details = service.get(api_path("clusters", str(row["name"])), refresh=True)
    except NotFoundError:
        return None
    return {key: details.get(key, one) for key, one in row.items()}
