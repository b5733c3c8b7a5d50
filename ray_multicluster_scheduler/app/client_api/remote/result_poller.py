"""ResultPoller: one long poll for all results of a program, resumed after the service restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
from ray_multicluster_scheduler.common.exception import (
    NotAllowedError,
    SchedulerError,
    UnknownItemError,
    error_from_problem,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.notices import SilentClusterNotices
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.scheduler.policy.reasons import CLUSTER_SUSPECT

_log = get_logger(__name__)
POLL_S = 25.0
MAX_AT_ONCE = 10_000
"""Maximum number of new ids per request that the service accepts."""


class ResultPoller:
    """Runs on the loop. ``watched`` returns the pending items and calls; ``ended`` and ``unknown`` are called for each
    result or lost id, ``mailbox`` with the name of the program's mailbox at the service."""

    def __init__(
        self,
        client: ServiceClient,
        name: str,
        watched: Callable[[], Iterable[Promise]],
        find: Callable[[str], Promise | None],
        ended: Callable[[Promise, Outcome], object],
        unknown: Callable[[Promise, SchedulerError], object],
        mailbox: Callable[[str], object],
    ) -> None:
        self._client, self._name = client, name
        self._watched, self._find, self._ended, self._unknown = watched, find, ended, unknown
        self._on_mailbox = mailbox
        self._add: dict[str, None] = {}
        self._received: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._notices = SilentClusterNotices()
        self._polling: asyncio.Task[None] | None = None
        self._mailbox: str | None = None

    def begin(self) -> None:
        """Start polling, if it is not running."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll_all())

    def add(self, item: Item) -> None:
        """Register an item that the service does not watch for this program yet."""
        self._add[item.id] = None
        self._wake.set()
        self.begin()

    async def close(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll_all(self) -> None:
        while self._received or any(True for _ in self._watched()):
            add, received = list(islice(self._add, MAX_AT_ONCE)), list(self._received)
            timeout = POLL_S if len(add) == len(self._add) else 0.0  # the rest goes with the next request
            body = {"client": self._name, "mailbox": self._mailbox, "add": add, "heard": received, "timeout": timeout}
            self._wake.clear()
            asking = asyncio.ensure_future(
                self._client.ask("POST", "/api/v1/wait", body, patience=None, timeout=POLL_S + 30)
            )
            woken = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait([asking, woken], return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # cancel the request, too
                asking.cancel()
                woken.cancel()
                await asyncio.gather(asking, woken, return_exceptions=True)
                raise
            woken.cancel()
            if not asking.done():  # an item was added: restart the request
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                continue
            try:
                answer = asking.result()
                mailbox, _, _ = answer["mailbox"], answer["items"], answer["problems"]
            except NotAllowedError as error:  # running items continue, but their results are not available
                for one in list(self._watched()):
                    self._unknown(one, error)
                self._received.clear()
                continue
            except (SchedulerError, LookupError, TypeError) as error:  # possibly another program at that address
                _log.warning("polling the service for results failed: %s", error)
                await asyncio.sleep(1.0)
                continue
            for item_id in add:
                self._add.pop(item_id, None)
            for item_id in received:
                self._received.pop(item_id, None)
            if mailbox != self._mailbox:  # the service has lost the watched ids
                self._mailbox = mailbox
                watched = list(self._watched())
                self._add.update((one.id, None) for one in watched if isinstance(one, Item) and one.accepted)
            self._on_mailbox(mailbox)
            await self._handle_answer(answer)

    async def _handle_answer(self, answer: Mapping[str, Any]) -> None:
        for status in answer["items"]:
            try:
                await self._handle_status(status)
            except SchedulerError as error:
                _log.warning("the outcome of %s cannot be fetched yet: %s", status["id"], error)
                await asyncio.sleep(1.0)
            except (LookupError, TypeError, ValueError) as error:  # another version? continue with the others
                _log.warning("the service sent an invalid item status: %r in %.200s", error, status)
                await asyncio.sleep(1.0)
        for item_id, problem in answer["problems"].items():
            item = self._find(item_id)
            self._received[item_id] = None
            if item is not None:
                self._unknown(item, error_from_problem(problem))

    async def _handle_status(self, status: Mapping[str, Any]) -> None:
        item = self._find(status["id"])
        if "outcome" in status:
            if item is not None and item.outcome is None:
                await self._end(item, status)
            self._received[status["id"]] = None
        elif isinstance(item, Item) and "number" in status:
            step = wire.step_from_wire(status)
            if item.transition is None or item.transition.number < step.number:
                item.moved(step)
                if step.code == CLUSTER_SUSPECT and step.cluster is not None:  # else it waits for the cluster
                    self._notices.add(step.cluster, step.at, step.sentence, item.id)

    async def _end(self, item: Promise, status: Mapping[str, Any]) -> None:
        body = status["outcome"]
        fetched: dict[str, bytes] = {}
        for digest in wire.named_payloads(body):
            path = f"/api/v1/blobs/{digest}"
            if not isinstance(item, Item):  # call results exist only in the mailbox
                path = f"/api/v1/calls/{quote(item.id, safe='')}/result?client={quote(self._name, safe='')}"
            try:
                fetched[digest] = await self._client.fetch(path)
            except UnknownItemError:
                _log.warning("the value of %s was deleted before it was fetched", item.id)
        if isinstance(item, Item) and "number" in status:
            item.transition = wire.step_from_wire(status)
        self._ended(item, wire.outcome_from_wire(body, fetched))
