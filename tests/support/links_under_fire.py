"""Run network faults, one after the other, against two real clusters under a steady load, and record the effects."""

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
from tests.support.chaos_store import read_stored, recorded_work, write_job
from tests.support.fault_history import FaultRun, Item, row, violated
from tests.support.network_faults import NetworkFault, Stage
from tests.support.running_service import RunningService
from tests.support.switchboard import Switchboard

PERIOD_S = 0.25
"""Interval of the load: one task for the impaired cluster, one for any."""
BALLAST = 6_000
"""Bytes that each task carries, so that low bandwidth has an effect."""
WORK_S = 0.1
BASELINE = 6
"""This many tasks succeed before a fault begins."""
TIMEOUT_S = 240.0
_OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class Watch:
    """All events of the service, in order; event numbers bridge restarts."""

    def __init__(self, client: UnifiedScheduler) -> None:
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._listener = client.on_event(self._on_event, types=["transition", "cluster"])

    def close(self) -> None:
        self._listener.close()

    def _on_event(self, event: dict[str, Any]) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def all(self) -> list[dict[str, Any]]:
        with self._changed:
            return list(self._events)

    def first(self, wanted: Callable[[dict[str, Any]], bool], until: float) -> dict[str, Any] | None:
        """The first wanted event, including past ones; None if there is none until then."""
        with self._changed:
            checked = 0
            while True:
                for event in self._events[checked:]:
                    if wanted(event):
                        return event
                checked = len(self._events)
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return None


@dataclass
class Load:
    """Submits tasks, and sometimes jobs, until :meth:`stop`."""

    client: UnifiedScheduler
    cluster: str
    notes: Path
    job: str
    job_every_s: float | None
    once: bool = False
    handles: list[tuple[Handle, Item]] = field(default_factory=list)
    pinned: dict[str, set[str]] = field(default_factory=lambda: {"task": set(), "job": set()})
    """The ids of items for the impaired cluster, by kind; they only grow."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def stop(self) -> None:
        """Raises the error of a failed submission."""
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
                    self._record(handle, at, pinned=True, kind="job")
                if self._over.wait(PERIOD_S):
                    return
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self._error = error

    def _task(self, *, pinned: bool) -> None:
        at = time.time()
        where: dict[str, Any] = {"preferred_cluster": self.cluster, "fallback": "wait"} if pinned else {}
        if self.once:
            where |= {"lost_retries": 0, "crash_retries": 0}
        arguments = (str(self.notes), WORK_S, os.urandom(BALLAST))
        self._record(self.client.submit_task_async(recorded_work, arguments, **where), at, pinned=pinned, kind="task")

    def _record(self, handle: Handle, at: float, *, pinned: bool, kind: str) -> None:
        self.handles.append((handle, Item(handle.id, at, pinned)))
        if pinned:
            self.pinned[kind].add(handle.id)


class LinksUnderFire:
    """``settings`` are the service's; faults must leave the fleet as they found it."""

    def __init__(
        self,
        fleet: LocalFleet,
        folder: Path,
        *,
        cluster: str = "mac",
        job_every_s: float | None = 6.0,
        log: Callable[[str], object] = print,
        **settings: object,
    ) -> None:
        self._fleet, self._folder, self._cluster, self._log = fleet, folder, cluster, log
        self._job_every_s, self._settings = job_every_s, settings
        self._notes = folder / "notes.jsonl"
        self._job = write_job(folder, self._notes)
        self.fault_runs: list[FaultRun] = []

    def run(self, faults: Sequence[NetworkFault]) -> list[tuple[FaultRun, list[str]]]:
        """Each fault with the guarantees that were violated."""
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
                for fault in faults:
                    self.fault_runs.append(self._run_fault(stage, client, watch, fault))
                watch.close()
                service.stop()
        ids = [item.id for fault_run in self.fault_runs for item in fault_run.items]
        history = History(stored=read_stored(state, ids), notes=read_notes(self._notes))
        return [(fault_run, violated(fault_run, history)) for fault_run in self.fault_runs]

    def _run_fault(self, stage: Stage, client: UnifiedScheduler, watch: Watch, fault: NetworkFault) -> FaultRun:
        load = Load(client, self._cluster, self._notes, self._job, self._job_every_s, fault.once)
        try:
            self._baseline(watch, load, fault)
            began = time.time()
            remark = fault.inject(stage, fault.seconds)
            fault_run = FaultRun(fault.name, self._cluster, began, time.time(), remark=remark)
            fault_run.may_fail_with = fault.may_fail_with
            self._until_usable(stage, watch, load, fault, fault_run)
        finally:
            load.stop()
        self._notice(watch, fault_run)
        self._collect(load, watch, fault_run)
        self._log(" | ".join(row(fault_run, ())[:-1]))
        return fault_run

    def _baseline(self, watch: Watch, load: Load, fault: NetworkFault) -> None:
        done: set[str] = set()

        def enough(event: dict[str, Any]) -> bool:
            if event.get("state") == "SUCCEEDED" and event.get("id") in load.pinned["task"]:
                done.add(event["id"])
            return len(done) >= BASELINE

        if watch.first(enough, time.monotonic() + TIMEOUT_S) is None:
            raise AssertionError(f"{self._cluster} did no work before the fault ({fault.name})")

    def _until_usable(self, stage: Stage, watch: Watch, load: Load, fault: NetworkFault, fault_run: FaultRun) -> None:
        """Wait until the cluster is usable. A cluster that died of the fault is started again."""
        until = time.monotonic() + TIMEOUT_S
        taken: set[str] = set()

        def done(event: dict[str, Any]) -> bool:
            known = event.get("id") in load.pinned[fault.seen_by]
            if known and event["step"] == 1 and event["at"] >= fault_run.ended:
                taken.add(event["id"])
            return event.get("state") == "SUCCEEDED" and event["type"] == "transition" and event["id"] in taken

        while fault_run.usable is None and time.monotonic() < until:
            event = watch.first(done, min(until, time.monotonic() + 2.0))
            if event is not None:
                fault_run.usable = event["at"]
            elif stage.fleet.state(self._cluster) == "down":
                self._log(f"{self._cluster} ended by itself after {fault.name}; it is restarted")
                fault_run.remark = ", ".join(filter(None, [fault_run.remark, "the cluster died and was restarted"]))
                stage.fleet.start(self._cluster)

    def _notice(self, watch: Watch, fault_run: FaultRun) -> None:
        until = fault_run.usable or time.time()
        states: dict[str, float] = {}
        for event in watch.all():
            of_it = event["type"] == "cluster" and event["cluster"] == self._cluster
            if of_it and fault_run.began <= event["at"] <= until and event["state"] != "UP":
                states.setdefault(event["state"], event["at"])
        if states:
            fault_run.noticed, fault_run.states = min(states.values()), ", ".join(states)

    def _collect(self, load: Load, watch: Watch, fault_run: FaultRun) -> None:
        """Wait for the end of all items, as reported to their program."""
        until = time.monotonic() + TIMEOUT_S
        for handle, item in load.handles:
            try:
                error = handle.exception(max(0.0, until - time.monotonic()))
            except TaskTimeoutError as late:
                self._log(f"{item.id} is not over: {late}")
                fault_run.items.append(item)
                continue
            sentence = error.message if isinstance(error, SchedulerError) else str(error or "")
            name = type(error).__name__ if error is not None else None
            over = replace(item, state=str(handle.state), error=name, sentence=sentence, cluster=handle.cluster)
            fault_run.items.append(over)
        ids = {item.id for item in fault_run.items if item.state is not None}
        ends: dict[str, float] = {}

        def all_ended(event: dict[str, Any]) -> bool:
            if event.get("id") in ids and event.get("state") in _OVER:
                ends[event["id"]] = event["at"]
            return len(ends) == len(ids)

        watch.first(all_ended, time.monotonic() + 30.0)
        fault_run.items = [replace(item, ended=ends.get(item.id)) for item in fault_run.items]
