"""What a bug report tells of a service, each part asked for by itself: one that cannot be had is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.service.client import path_of
from ray_multicluster_scheduler.cli.service.items import told_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

LAST_EVENTS = 1000
LAST_ITEMS = 200
MOST_EXPLAINED = 50
MOST_CLUSTERS = 100
MOST_WAITING = 1000
EXPLAIN_S = 20.0
"""So long items are asked about, one after the other."""

Part = tuple[str, str, Callable[["Service"], Any]]
"""Name of the file, what it tells, and how that is asked for; data, or text."""


def parts() -> Iterator[Part]:
    yield "service/about.json", "its version, and who asked", _about
    yield "service/ready.txt", "does it accept work?", lambda service: _text(service, "/readyz")
    yield "service/settings.json", "settings and clusters in force", lambda service: service.get(path_of("settings"))
    yield "service/clusters.json", "every cluster as it was last seen", _clusters
    yield "service/nodes.json", "their nodes", lambda service: service.get(path_of("nodes"))
    yield (
        "service/queue.json",
        "what waits, and why",
        lambda service: service.get(path_of("queue"), limit=MOST_WAITING),
    )
    yield "service/owners.json", "who has how much, and may have", lambda service: service.get(path_of("owners"))
    yield "service/items.json", f"the last {LAST_ITEMS} items", _items
    yield "service/jobs.json", f"the last {LAST_ITEMS} jobs, with their entrypoints", _jobs
    yield (
        "service/explain.json",
        f"why those that are not over are where they are, {MOST_EXPLAINED} at most",
        _explained,
    )
    yield "service/events.jsonl", f"the last {LAST_EVENTS:,} events, one a line", _events
    yield "service/metrics.txt", "its figures", lambda service: _text(service, "/metrics")


def _about(service: Service) -> dict[str, Any]:
    fleet = service.get(path_of("fleet"))
    return {"address": service.address, **{key: fleet[key] for key in ("version", "control_plane", "you", "homes")}}


def _text(service: Service, path: str) -> str:
    return service.fetch(path).decode("utf-8", "replace")


def _clusters(service: Service) -> dict[str, Any]:
    rows = service.get(path_of("clusters"))["clusters"]
    names = [str(row["name"]) for row in rows[:MOST_CLUSTERS]]
    return {
        "clusters": [service.get(path_of("clusters", name), refresh=False) for name in names] + rows[MOST_CLUSTERS:]
    }


def _items(service: Service) -> dict[str, Any]:
    return {"items": service.rows(path_of("items"), "items", LAST_ITEMS)}


def _jobs(service: Service) -> dict[str, Any]:
    return {"jobs": service.rows(path_of("jobs"), "jobs", LAST_ITEMS)}


def _explained(service: Service) -> dict[str, Any]:
    """Each as it is now, and why."""
    until = time.monotonic() + EXPLAIN_S
    waiting = [row for row in service.rows(path_of("items"), "items", LAST_ITEMS) if not _over(row)]
    stories = []
    for row in waiting[:MOST_EXPLAINED]:
        if time.monotonic() > until:
            break
        item_id = str(row["id"])
        stories.append(
            {"item": told_of(service, item_id), "explain": service.get(path_of("items", item_id, "explain"))}
        )
    return {"not_over": len(waiting), "explained": stories}


def _over(row: dict[str, Any]) -> bool:
    return exit_codes.is_over(str(row["state"]))


def _events(service: Service) -> str:
    from ray_multicluster_scheduler.cli.commands.events import newest_number, past
    from ray_multicluster_scheduler.cli.layout.output import Format, as_text

    newest = newest_number(service)
    told = past(service, max(0, newest - LAST_EVENTS), newest, {})
    return "".join(f"{as_text(event, Format.json, compact=True)}\n" for event in told)
