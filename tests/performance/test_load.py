"""Increasingly many programs submit to one service, beyond the capacity of its clusters: nothing is lost, memory is
bounded, and the queue drains. The clusters are simulated; store, HTTP, scheduler and clients are real."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.durable import BLOBS, Service, task
from tests.support.eventually import until

STEPS = (1, 2, 4, 8)
EACH = 100
BATCH = 50
MAX_MB = 400.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service(tmp_path / "state", run_ms=200)
    yield running
    running.close()


def ask(service: Service, path: str, document: dict[str, Any] | None = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    headers = {"Content-Type": "application/json", **service.headers}
    request = urllib.request.Request(f"{service.address}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def states(service: Service) -> Counter[str]:
    """Of everything that the store knows."""
    found: Counter[str] = Counter()
    after = ""
    while True:
        page = ask(service, f"/api/v1/items?limit=1000{after}")
        found.update(one["state"] for one in page["items"])
        if page["after"] is None:
            return found
        after = f"&after={page['after']}"


def test_a_growing_number_of_programs_exceeds_the_capacity(service: Service) -> None:
    accepted: list[str] = []
    errors: list[str] = []

    def submit(step: int, program: int) -> None:
        for at in range(0, EACH, BATCH):
            names = [f"s{step}-p{program}-{at + one}" for one in range(BATCH)]
            batch = {"items": [{"task": task(name)} for name in names], "blobs": BLOBS}
            for name, answer in zip(names, ask(service, "/api/v1/items/batch", batch)["items"], strict=True):
                (accepted if answer.get("id") == name else errors).append(name)

    for step in STEPS:
        programs = [threading.Thread(target=submit, args=(step, program)) for program in range(step)]
        for one in programs:
            one.start()
        for one in programs:
            one.join()
    assert errors == []
    assert len(accepted) == sum(STEPS) * EACH
    until(lambda: states(service) == {"SUCCEEDED": len(accepted)}, 90)
    assert service.rss_mb() < MAX_MB
