"""The clusters of a service, for somebody who only looks: a look starts nothing anywhere.

A cluster without a dashboard tells only a gateway how it is, and to ask it would start one there. The service does that
for work, and for `rmcs clusters`; here such a cluster is shown as the service knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.exit_codes import NotThereError
from ray_multicluster_scheduler.cli.service.client import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

_AT_ONCE = 8


def clusters_now(service: Service) -> list[dict[str, Any]]:
    """All of them. Those that nobody had a reason to ask lately are asked."""
    return _asked(service, lambda row: bool(row.get("stale")))


def clusters_asked(service: Service) -> list[dict[str, Any]]:
    """All of them, asked now."""
    return _asked(service, lambda _: True)


def is_known_only_by_a_gateway(row: Mapping[str, Any]) -> bool:
    """Nobody had a reason to ask it lately, and to ask it would start something."""
    return bool(row.get("stale")) and not row.get("dashboard")


def _asked(service: Service, which: Callable[[Mapping[str, Any]], bool]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = service.get(path_of("clusters"))["clusters"]
    wanted = [row for row in rows if which(row) and row.get("dashboard")]
    if not wanted:
        return rows
    if all(row.get("dashboard") for row in rows):
        return list(service.get(path_of("clusters"), refresh=True)["clusters"])
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as side_by_side:
        answers = side_by_side.map(lambda row: _now(service, row), wanted)
        news = {str(row["name"]): answer for row, answer in zip(wanted, answers, strict=True)}
    asked = (news.get(str(row["name"]), row) for row in rows)
    return [row for row in asked if row is not None]


def _now(service: Service, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same row, asked now: one cluster alone is told with more than that. None: it was removed since."""
    try:
        told = service.get(path_of("clusters", str(row["name"])), refresh=True)
    except NotThereError:
        return None
    return {key: told.get(key, one) for key, one in row.items()}
