"""Faults to inject into the network between a service and a cluster, and into the processes at both ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil

from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.fault_history import LOST_OR_CRASHED
from tests.support.mac_cluster import AGENT
from tests.support.running_service import RunningService


@dataclass(frozen=True)
class Stage:
    """Where a fault is injected; ``agents_dial`` is the port to which only agents of this service connect."""

    fleet: LocalFleet
    service: RunningService
    cluster: str
    agents_dial: int

    def agents(self) -> list[psutil.Process]:
        """The link agents of this service in the cluster."""
        return [one for one in self._with(AGENT) if self._dials(one)]

    def head_processes(self, word: str) -> list[psutil.Process]:
        """The processes of the cluster's head that have this word in their command line."""
        return self._with(word)

    def _with(self, word: str) -> list[psutil.Process]:
        found = []
        for pid in self.fleet.processes(self.cluster):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if any(word in part for part in process.cmdline()):
                    found.append(process)
        return found

    def _dials(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return any(one.raddr and one.raddr.port == self.agents_dial for one in process.net_connections("tcp4"))
        return False


Inject = Callable[[Stage, float], str]
"""Injects a fault for so many seconds, ends it, and returns a remark for the table."""


@dataclass(frozen=True)
class NetworkFault:
    """``seen_by``: the kind of work that shows when the cluster is usable again.

    ``once``: the work is submitted without retries, since a killed agent cannot report completed work, which would then
    be run again.
    """

    name: str
    seconds: float
    inject: Inject
    may_fail_with: frozenset[str] = frozenset()
    seen_by: Literal["task", "job"] = "task"
    once: bool = False


def _network_fault(name: str, seconds: float, impair: Callable[[Stage], object]) -> NetworkFault:
    """Impair the network of the cluster for a while, and restore it."""

    def inject(stage: Stage, lasting: float) -> str:
        impair(stage)
        time.sleep(lasting)
        stage.fleet.restore_network(stage.cluster)
        return ""

    return NetworkFault(name, seconds, inject)


def latency(seconds: float = 15.0, delay_s: float = 0.2) -> NetworkFault:
    name = f"latency of {delay_s * 1000:.0f} ms each way"
    return _network_fault(name, seconds, lambda stage: stage.fleet.delay(stage.cluster, delay_s))


def cuts(chance: float, seconds: float = 30.0) -> NetworkFault:
    def inject(stage: Stage, lasting: float) -> str:
        until, count = time.monotonic() + lasting, 0
        while time.monotonic() < until:
            count += stage.fleet.cut_some(stage.cluster, chance)
            time.sleep(1.0)
        return f"{count} cut"

    return NetworkFault(f"{chance:.0%} of the connections cut each second", seconds, inject)


def half_open() -> NetworkFault:
    """Has no duration: open connections are lost for good, and new ones work."""

    def inject(stage: Stage, _: float) -> str:
        return f"{stage.fleet.blackhole(stage.cluster)} of them"

    return NetworkFault("half-open connections", 0.0, inject)


def dead_network(seconds: float = 30.0) -> NetworkFault:
    return _network_fault(
        "frozen connections: no byte passes", seconds, lambda stage: stage.fleet.freeze(stage.cluster)
    )


def narrow(bytes_per_s: float = 65536.0, seconds: float = 15.0) -> NetworkFault:
    name = f"{bytes_per_s / 1024:.0f} KB/s"
    return _network_fault(name, seconds, lambda stage: stage.fleet.throttle(stage.cluster, bytes_per_s))


def restart(*order: Literal["service", "agent"]) -> NetworkFault:
    """Kill both ends in this order; the service is restarted when all named processes are dead."""

    def inject(stage: Stage, _: float) -> str:
        agents = stage.agents()
        assert agents, f"there is no agent in {stage.cluster} to be killed"
        for end in order:
            if end == "service":
                stage.service.kill()
            else:
                for agent in agents:
                    agent.kill()
        if "service" in order:
            stage.service.start()
        return ""

    once = "agent" in order
    fails = LOST_OR_CRASHED if once else frozenset()
    return NetworkFault(f"killed and started again: {', then '.join(order)}", 0.0, inject, fails, once=once)


def stopped(what: str, seconds: float = 25.0) -> NetworkFault:
    """SIGSTOP, and SIGCONT after a while."""

    def inject(stage: Stage, lasting: float) -> str:
        if what == "service":
            processes = [psutil.Process(stage.service.process.pid)]
        else:
            processes = stage.agents() if what == "agent" else stage.head_processes(_WORDS[what])
        assert processes, f"there is no {what} in {stage.cluster} to be stopped"
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            time.sleep(lasting)
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
        return ""

    fails = frozenset() if what in ("service", "dashboard") else LOST_OR_CRASHED
    return NetworkFault(f"SIGSTOP of the {what}", seconds, inject, fails, "job" if what == "dashboard" else "task")


_WORDS = {"dashboard": "dashboard/dashboard.py", "GCS": "gcs_server", "raylet": "raylet/raylet"}


def all_faults() -> Sequence[NetworkFault]:
    """The faults of `make links-under-fire`."""
    return (
        latency(),
        cuts(0.01),
        cuts(0.2, 20.0),
        half_open(),
        dead_network(),
        narrow(),
        restart("service"),
        restart("agent"),
        restart("service", "agent"),
        restart("agent", "service"),
        *(stopped(what) for what in ("agent", "service", "dashboard", "GCS", "raylet")),
    )


def some_faults() -> Sequence[NetworkFault]:
    """One short fault of each kind, for the integration tests."""
    return latency(4.0), cuts(0.5, 4.0), half_open(), restart("service", "agent")
