"""Shared by tests of links: calls, a clock, and a listener that records all reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, CallResult, LinkInfo
from tests.support.eventually import eventually


class FakeClock:
    """A clock that a test sets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time


def call(task_id: str, attempt: int = 1, *, function: bytes = b"fn", arguments: bytes = b"args", **values: Any) -> Call:
    defaults = {
        "fence": 1,
        "name": task_id,
        "function_digest": f"digest-of-{function[:20]!r}",
        "resources": {"CPU": 1.0},
    }
    return Call(task_id=task_id, attempt=attempt, function=function, arguments=arguments, **{**defaults, **values})


def link_info(cluster: str = "a") -> LinkInfo:
    return LinkInfo(cluster, "agent", 2, "2.60.0", "3.11.7", "session_1", "linux", "x86_64", "job-1")


def idle_snapshot(cluster: str = "a", cpus: float = 2.0) -> ResourceSnapshot:
    node = NodeSnapshot("n1", {"CPU": cpus}, {"CPU": cpus}, is_head=True)
    return ResourceSnapshot(cluster=cluster, taken_at=1000.0, nodes=(node,), source="agent")


class RecordingListener:
    """A LinkListener that records all reports, in order, as tuples that begin with the kind."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.silent_s = 0.0
        """Of the last broken connection."""
        self.kept_later: list[Callable[[], object]] = []
        self.slow = False
        """Results become durable only when a test calls :meth:`keep`."""
        self.acknowledges_later = False
        self.unacknowledged: dict[str, Callable[[], object]] = {}
        """If so: the action for each call, to be run when its caller has received the answer."""

    def keep(self) -> None:
        actions, self.kept_later = self.kept_later, []
        for action in actions:
            action()

    def link_up(self, info: LinkInfo) -> None:
        self.events.append(("link_up", info))

    def link_down(self, cluster: str, sentence: str, silent_s: float = 0.0) -> None:
        self.events.append(("link_down", cluster, sentence))
        self.silent_s = silent_s

    def link_closed(self, cluster: str, sentence: str) -> None:
        self.events.append(("link_closed", cluster, sentence))

    def processes_dead(self, cluster: str, sentence: str) -> None:
        self.events.append(("processes_dead", cluster, sentence))

    def head_silent(self, cluster: str, silent_s: float) -> None:
        self.events.append(("head_silent", cluster, silent_s))

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None:
        self.events.append(("accepted", task_id, attempt))

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None:
        self.events.append(("started", task_id, attempt, at, node_id))

    def moved(self, cluster: str, ended: tuple[str, int], begun: tuple[str, int]) -> None:
        self.events.append(("moved", ended, begun))

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        self.events.append(("output", task_id, attempt, stream, text))

    def dropped(self, cluster: str, task_id: str, attempt: int, characters: int) -> None:
        self.events.append(("dropped", task_id, attempt, characters))

    def finished(self, cluster: str, result: CallResult) -> None:
        self.events.append(("finished", result.task_id, result.attempt, result))

    def when_durable(self, action: Callable[[], object]) -> None:
        self.kept_later.append(action)
        if not self.slow:
            self.keep()

    def hold_until_delivered(self, call_id: str, action: Callable[[], object]) -> bool:
        if self.acknowledges_later:
            self.unacknowledged[call_id] = action
        return self.acknowledges_later

    def snapshot(self, snapshot: ResourceSnapshot) -> None:
        self.events.append(("snapshot", snapshot))

    # ---- queries

    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] == kind]

    def kinds_of(self, task_id: str) -> list[str]:
        """The kinds of the reports about one task."""
        return [event[0] for event in self.events if len(event) > 1 and event[1] == task_id]

    def results(self) -> list[CallResult]:
        return [event[3] for event in self.of("finished")]

    def result(self, task_id: str) -> CallResult:
        """Its one answer."""
        (answer,) = [result for result in self.results() if result.task_id == task_id]
        return answer

    async def until(self, kind: str, count: int = 1) -> list[tuple[Any, ...]]:
        await eventually(lambda: len(self.of(kind)) >= count, lambda: f"{count} × {kind}, heard {self.kinds()}")
        return self.of(kind)
