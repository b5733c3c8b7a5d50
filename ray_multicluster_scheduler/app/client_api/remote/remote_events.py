"""Events of a service, read until nobody wants them: a connection that is lost is made again, and nothing is missed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
from ray_multicluster_scheduler.app.client_api.remote.service_errors import NobodyAnswersError
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter

_log = get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
SILENCE_S = 45.0
"""A service says every fifteen seconds that all is well."""


async def told(
    client: ServiceClient, wanted: EventFilter, since: int | None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """What came together, again and again. Raises SchedulerError for what the service refuses."""
    words = {one.name: ",".join(sorted(getattr(wanted, one.name))) for one in fields(wanted)}
    query = urlencode({key: value for key, value in words.items() if value})
    last, pause, began = since, _FIRST_PAUSE_S, False
    while True:
        lines = ""
        after = {} if last is None else {"Last-Event-ID": str(last)}
        try:
            async for piece in client.stream(f"/api/v1/events?{query}", headers=after, silence_s=SILENCE_S):
                pause, began = _FIRST_PAUSE_S, True
                *whole, lines = (lines + piece).split("\n\n")
                events = []
                for frame in whole:
                    number, said = _read(frame)
                    last = last if number is None else number
                    events += [] if said is None else [said]
                yield events
            _log.info("the service %s has ended its events; it is asked again", client.address)
        except ServiceUnavailableError as error:
            if client.closed:
                return
            if not began and not isinstance(error, NobodyAnswersError):
                raise
            _log.warning("no events come: %s They are asked for again.", error.message)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _read(frame: str) -> tuple[int | None, dict[str, Any] | None]:
    number, said = None, None
    for line in frame.split("\n"):
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            said = json.loads(line[6:])
    return number, said
