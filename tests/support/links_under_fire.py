"""Two real clusters under a steady load, and one trouble after the other for the line to one of them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.chaos_history import History, read_notes
from tests.support.chaos_store import noted, read_stored, write_job
from tests.support.fire_history import Item, Ordeal, broken, row
from tests.support.fire_troubles import Stage, Trouble
from tests.support.running_service import RunningService
from tests.support.switchboard import Switchboard

PERIOD_S = 0.25
"""Between two rounds of the load: one task for the troubled cluster, one for any."""
BALLAST = 6_000
"""Bytes that each task carries: what a narrow line is felt by."""
WORK_S = 0.1
BASELINE = 6
"""So many tasks end well before a trouble begins."""
PATIENCE_S = 240.0
_OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class Watch:
    """Everything that the service tells, in its order; restarts are bridged by the numbers of events."""

    def __init__(self, client: UnifiedScheduler) -> None:
        self._told: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._listener = client.on_event(self._hear, types=["transition", "cluster"])

    def close(self) -> None:
        self._listener.close()

    def _hear(self, event: dict[str, Any]) -> None:
        with self._news:
            self._told.append(event)
            self._news.notify_all()

    def all(self) -> list[dict[str, Any]]:
        with self._news:
            return list(self._told)

    def first(self, wanted: Callable[[dict[str, Any]], bool], until: float) -> dict[str, Any] | None:
        """The first of all that is wanted, those of the past too; None when there is none by then."""
        with self._news:
            looked = 0
            while True:
                for event in self._told[looked:]:
                    if wanted(event):
                        return event
                looked = len(self._told)
                left = until - time.monotonic()
                if left <= 0 or not self._news.wait(left):
                    return None


@dataclass
class Load:
    """Hands in tasks, and jobs now and then, until it is told to stop."""

    client: UnifiedScheduler
    cluster: str
    notes: Path
    job: str
    job_every_s: float | None
    once: bool = False
    handles: list[tuple[Handle, Item]] = field(default_factory=list)
    pinned: dict[str, set[str]] = field(default_factory=lambda: {"task": set(), "job": set()})
    """The ids of those for the troubled cluster, by kind; they only grow."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def stop(self) -> None:
        """Raises what handing in raised."""
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        next_job = time.monotonic()
        try:
            while True:
                self._task(pinned=True)
                self._task(pinned=False)
                if self.job_every_s is not None and time.monotonic() >= next_job:
                    next_job = time.monotonic() + self.job_every_s
                    at = time.time()
                    handle = self.client.submit_job_async(self.job, preferred_cluster=self.cluster, fallback="wait")
                    self._took(handle, at, pinned=True, kind="job")
                if self._over.wait(PERIOD_S):
                    return
        except BaseException as error:  # noqa: BLE001 - told to whoever stops it
            self._error = error

    def _task(self, *, pinned: bool) -> None:
        at = time.time()
        where: dict[str, Any] = {"preferred_cluster": self.cluster, "fallback": "wait"} if pinned else {}
        if self.once:
            where |= {"lost_retries": 0, "crash_retries": 0}
        arguments = (str(self.notes), WORK_S, os.urandom(BALLAST))
        self._took(self.client.submit_task_async(noted, arguments, **where), at, pinned=pinned, kind="task")

    def _took(self, handle: Handle, at: float, *, pinned: bool, kind: str) -> None:
        self.handles.append((handle, Item(handle.id, at, pinned)))
        if pinned:
            self.pinned[kind].add(handle.id)


class LinksUnderFire:
    """``settings`` are the service's; the fleet is used as it is, and has to be left as it was."""

    def __init__(
        self,
        fleet: LocalFleet,
        folder: Path,
        *,
        cluster: str = "mac",
        job_every_s: float | None = 6.0,
        say: Callable[[str], object] = print,
        **settings: object,
    ) -> None:
        self._fleet, self._folder, self._cluster, self._say = fleet, folder, cluster, say
        self._job_every_s, self._settings = job_every_s, settings
        self._notes = folder / "notes.jsonl"
        self._job = write_job(folder, self._notes)
        self.ordeals: list[Ordeal] = []

    def run(self, troubles: Sequence[Trouble]) -> list[tuple[Ordeal, list[str]]]:
        """Each trouble with the promises that were broken in it."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        state = self._folder / "state"
        with Switchboard(self._fleet, port) as board:
            service = RunningService(
                Path(self._fleet.config_path),
                state,
                agent_listen=f"127.0.0.1:{port}",
                agent_advertise=board.address,
                **self._settings,
            )
            stage = Stage(self._fleet, service, self._cluster, board.port)
            with service, UnifiedScheduler(address=service.address, token=service.token) as client:
                for one in self._fleet.clusters:  # the first item of each has to wait for an agent
                    client.submit_task(len, ("warm",), preferred_cluster=one.name, fallback="wait")
                watch = Watch(client)
                for trouble in troubles:
                    self.ordeals.append(self._ordeal(stage, client, watch, trouble))
                watch.close()
                service.stop()
        ids = [item.id for ordeal in self.ordeals for item in ordeal.items]
        history = History(stored=read_stored(state, ids), notes=read_notes(self._notes))
        return [(ordeal, broken(ordeal, history)) for ordeal in self.ordeals]

    def _ordeal(self, stage: Stage, client: UnifiedScheduler, watch: Watch, trouble: Trouble) -> Ordeal:
        load = Load(client, self._cluster, self._notes, self._job, self._job_every_s, trouble.once)
        try:
            self._baseline(watch, load, trouble)
            began = time.time()
            remark = trouble.deed(stage, trouble.seconds)
            ordeal = Ordeal(trouble.name, self._cluster, began, time.time(), remark=remark)
            ordeal.may_fail_with = trouble.may_fail_with
            self._until_usable(stage, watch, load, trouble, ordeal)
        finally:
            load.stop()
        self._notice(watch, ordeal)
        self._collect(load, watch, ordeal)
        self._say(" | ".join(row(ordeal, ())[:-1]))
        return ordeal

    def _baseline(self, watch: Watch, load: Load, trouble: Trouble) -> None:
        done: set[str] = set()

        def enough(event: dict[str, Any]) -> bool:
            if event.get("state") == "SUCCEEDED" and event.get("id") in load.pinned["task"]:
                done.add(event["id"])
            return len(done) >= BASELINE

        if watch.first(enough, time.monotonic() + PATIENCE_S) is None:
            raise AssertionError(f"{self._cluster} did no work before the trouble ({trouble.name})")

    def _until_usable(self, stage: Stage, watch: Watch, load: Load, trouble: Trouble, ordeal: Ordeal) -> None:
        """The cluster's own end is told by nobody, so that is looked for; it is then started again."""
        until = time.monotonic() + PATIENCE_S
        taken: set[str] = set()

        def done(event: dict[str, Any]) -> bool:
            known = event.get("id") in load.pinned[trouble.seen_by]
            if known and event["step"] == 1 and event["at"] >= ordeal.ended:
                taken.add(event["id"])
            return event.get("state") == "SUCCEEDED" and event["type"] == "transition" and event["id"] in taken

        while ordeal.usable is None and time.monotonic() < until:
            event = watch.first(done, min(until, time.monotonic() + 2.0))
            if event is not None:
                ordeal.usable = event["at"]
            elif stage.fleet.state(self._cluster) == "down":
                self._say(f"{self._cluster} ended by itself after {trouble.name}; it is started again")
                ordeal.remark = ", ".join(filter(None, [ordeal.remark, "the cluster died of it and was started again"]))
                stage.fleet.start(self._cluster)

    def _notice(self, watch: Watch, ordeal: Ordeal) -> None:
        until = ordeal.usable or time.time()
        told: dict[str, float] = {}
        for event in watch.all():
            of_it = event["type"] == "cluster" and event["cluster"] == self._cluster
            if of_it and ordeal.began <= event["at"] <= until and event["state"] != "UP":
                told.setdefault(event["state"], event["at"])
        if told:
            ordeal.noticed, ordeal.told = min(told.values()), ", ".join(told)

    def _collect(self, load: Load, watch: Watch, ordeal: Ordeal) -> None:
        """Wait until all is over; what its program is told is what counts."""
        until = time.monotonic() + PATIENCE_S
        for handle, item in load.handles:
            try:
                error = handle.exception(max(0.0, until - time.monotonic()))
            except TaskTimeoutError as late:
                self._say(f"{item.id} is not over: {late}")
                ordeal.items.append(item)
                continue
            said = error.message if isinstance(error, SchedulerError) else str(error or "")
            name = type(error).__name__ if error is not None else None
            over = replace(item, state=str(handle.state), error=name, sentence=said, cluster=handle.cluster)
            ordeal.items.append(over)
        ids = {item.id for item in ordeal.items if item.state is not None}
        ends: dict[str, float] = {}

        def all_told(event: dict[str, Any]) -> bool:
            if event.get("id") in ids and event.get("state") in _OVER:
                ends[event["id"]] = event["at"]
            return len(ends) == len(ids)

        watch.first(all_told, time.monotonic() + 30.0)
        ordeal.items = [replace(item, ended=ends.get(item.id)) for item in ordeal.items]
