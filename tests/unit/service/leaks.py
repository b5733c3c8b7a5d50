"""leaks(): what a service still holds after everybody has gone."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.unit.service.fuzzed_service import FuzzedService

SOON_S = 40.0
_MORE = {"files": 5, "tasks": 3, "readers": 0, "megabytes": 150}
"""So much more than before is none: items that were accepted are kept, and so are threads and connections of pools."""


def leaks(service: FuzzedService, before: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What it holds more of than before, and by how much, once it had time to notice."""
    end = time.monotonic() + SOON_S
    while True:
        now = service.holds()
        found = {what: (before[what], now[what]) for what, more in _MORE.items() if now[what] > before[what] + more}
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)
