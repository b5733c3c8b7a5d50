"""Lists the files about a service in a debug dump, with the function that fetches each, so that one can fail alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.cli.service.items import item_details

LAST_EVENTS = 1000
LAST_ITEMS = 200
MAX_EXPLAINED = 50
MAX_CLUSTERS = 100
MAX_WAITING = 1000
EXPLAIN_S = 20.0
"""Explanations are fetched one by one for at most this time."""

Part = tuple[str, str, Callable[[Service], Any]]
"""Name of the file, its description, and the function that fetches data or text."""


def service_files() -> Iterator[Part]:
    yield "service/about.json", "its version, and the user who asked", _service_info
    yield "service/ready.txt", "whether it accepts work", lambda service: _text(service, "/readyz")
    yield "service/settings.json", "settings and clusters in force", lambda service: service.get(api_path("settings"))
    yield "service/clusters.json", "the last known state of every cluster", _clusters
    yield "service/nodes.json", "their nodes", lambda service: service.get(api_path("nodes"))
    yield "service/queue.json", "what waits, and why", lambda service: service.get(api_path("queue"), limit=MAX_WAITING)
    yield "service/owners.json", "owners, their items and limits", lambda service: service.get(api_path("owners"))
    yield "service/items.json", f"the last {LAST_ITEMS} items", lambda service: _rows(service, "items")
    yield (
        "service/jobs.json",
        f"the last {LAST_ITEMS} jobs, with their entrypoints",
        lambda service: _rows(service, "jobs"),
    )
    yield "service/explain.json", f"explanations of at most {MAX_EXPLAINED} unfinished items", _explained
    yield "service/events.jsonl", f"the last {LAST_EVENTS:,} events, one a line", _events
    yield "service/metrics.txt", "its metrics", lambda service: _text(service, "/metrics")


def _service_info(service: Service) -> dict[str, Any]:
    fleet = service.get(api_path("fleet"))
    return {"address": service.address, **{key: fleet[key] for key in ("version", "control_plane", "you", "homes")}}


def _text(service: Service, path: str) -> str:
    return service.fetch(path).decode("utf-8", "replace")


def _clusters(service: Service) -> dict[str, Any]:
    rows = service.get(api_path("clusters"))["clusters"]
    names = [str(row["name"]) for row in rows[:MAX_CLUSTERS]]
    return {
        "clusters": [service.get(api_path("clusters", name), refresh=False) for name in names] + rows[MAX_CLUSTERS:]
    }


def _rows(service: Service, kind: str) -> dict[str, Any]:
    return {kind: service.rows(api_path(kind), kind, LAST_ITEMS)}


def _explained(service: Service) -> dict[str, Any]:
    """Unfinished items with their explanations."""
    until = time.monotonic() + EXPLAIN_S
    rows = service.rows(api_path("items"), "items", LAST_ITEMS)
    unfinished = [row for row in rows if not exit_codes.is_over(str(row["state"]))]
    explained = []
    for row in unfinished[:MAX_EXPLAINED]:
        if time.monotonic() > until:
            break
        item_id = str(row["id"])
        explanation = service.get(api_path("items", item_id, "explain"))
        explained.append({"item": item_details(service, item_id), "explain": explanation})
    return {"not_over": len(unfinished), "explained": explained}


def _events(service: Service) -> str:
    from ray_multicluster_scheduler.cli.commands.events import between, newest_number
    from ray_multicluster_scheduler.cli.layout.output import Format, as_text

    newest = newest_number(service)
    events = between(service, max(0, newest - LAST_EVENTS), newest, {})
    return "".join(f"{as_text(event, Format.json, compact=True)}\n" for event in events)
