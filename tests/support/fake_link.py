"""FakeLink: a cluster in memory. Calls end on command of the test, or automatically."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallResult,
    LinkInfo,
    LinkListener,
    MethodCall,
)
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import value_lost
from tests.support.links import idle_snapshot, link_info

Answer = Callable[[Call], CallResult]
Key = tuple[str, int]


def success(call: Call) -> CallResult:
    """An automatic answer: every call succeeds with its own arguments as the value."""
    return CallResult(call.task_id, call.attempt, "succeeded", payload=call.arguments, actor_id=actor_of(call))


def actor_of(call: Call) -> str | None:
    """The actor whose method it is; None for other calls."""
    return None if call.method is None else call.method.actor_id


class FakeLink:
    """Keeps the promises of ClusterLink. With ``answer``, calls are accepted, started and answered on the loop
    by themselves (actors are started only); without, a test does it with accept(), begin(), finish() and fail().

    Calls that were sent ahead wait here: each takes over the place of a call with equal resources when that
    ends, or is begun by start().

    ``obeys_cancel``: a cancelled call is answered at once; otherwise only when the test ends it.
    ``answers``: health and snapshot are answered; otherwise they time out.
    """

    def __init__(
        self,
        cluster: str,
        listener: LinkListener,
        *,
        answer: Answer | None = None,
        obeys_cancel: bool = True,
        snapshot: ResourceSnapshot | None = None,
    ) -> None:
        self._cluster, self._listener, self._answer = cluster, listener, answer
        self._open: dict[Key, set[str]] = {}
        self._call: dict[Key, Call] = {}
        self._ahead: deque[Key] = deque()
        self.calls: list[Call] = []
        self.cancelled: list[tuple[str, int, bool]] = []
        self.started: list[Key] = []
        self.recalled: list[Key] = []
        self.adopted: list[Key] = []
        self.adopted_methods: list[tuple[str, Key, Key]] = []
        self.obeys_cancel, self.answers, self.closed = obeys_cancel, True, False
        self.agent, self.values, self.let_go_of = "agent-1", dict[Key, bytes](), list[Key]()
        self.current_snapshot = snapshot or idle_snapshot(cluster)

    @property
    def cluster(self) -> str:
        return self._cluster

    @property
    def info(self) -> LinkInfo:
        return link_info(self._cluster)

    @property
    def connected(self) -> bool:
        return not self.closed

    @property
    def idle_s(self) -> float:
        return 0.0

    @property
    def unanswered(self) -> list[Key]:
        return list(self._open)

    @property
    def ahead(self) -> list[Key]:
        """Prefetched calls without a slot."""
        return list(self._ahead)

    # ClusterLink ----------------------------------------------------------------------------------------

    def submit(self, calls: Sequence[Call]) -> None:
        for call in calls:
            key = (call.task_id, call.attempt)
            self.calls.append(call)
            self._open[key], self._call[key] = set(), call
            if self.closed:
                self._settle(_lost(call, "the link is closed"))
            elif call.ahead:
                self._ahead.append(key)
                if self._answer is not None:
                    asyncio.get_running_loop().call_soon(self.accept, *key)
            else:
                self._place(key)

    def adopt(self, task_id: str, attempt: int) -> None:
        self.adopted.append((task_id, attempt))
        self._open.setdefault((task_id, attempt), {"accepted", "started"})

    def adopt_method(self, call_id: str, actor: Key, output_owner: Key) -> None:
        key = (call_id, 1)
        if key in self._open:
            return
        self.adopted_methods.append((call_id, actor, output_owner))
        self._open[key], self._call[key] = set(), _method(call_id, actor)
        if self.closed:
            self._settle(_lost(self._call[key], "the link is closed"))

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        if (task_id, attempt) not in self._open:
            return
        self.cancelled.append((task_id, attempt, force))
        if self.obeys_cancel:
            self._end_soon((task_id, attempt))

    def start(self, task_id: str, attempt: int) -> None:
        if (task_id, attempt) in self._ahead:
            self.started.append((task_id, attempt))
            self._ahead.remove((task_id, attempt))
            self._place((task_id, attempt))

    async def fetch(self, task_id: str, attempt: int) -> bytes:
        if (task_id, attempt) not in self.values:
            raise value_lost(task_id, self._cluster, "the test has none")
        return self.values[task_id, attempt]

    def release_value(self, task_id: str, attempt: int) -> None:
        self.let_go_of.append((task_id, attempt))
        self.values.pop((task_id, attempt), None)

    def release_values_older_than(self, seconds: float) -> None:
        for key in list(self.values):
            self.release_value(*key)

    def recall(self, task_id: str, attempt: int) -> None:
        if (task_id, attempt) in self._ahead:
            self.recalled.append((task_id, attempt))
            self._ahead.remove((task_id, attempt))
            self._end_soon((task_id, attempt), code="RECALLED")

    async def health(self, timeout: float) -> float:
        await self._answer_or_time_out(timeout)
        return 0.0

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        await self._answer_or_time_out(timeout)
        self._listener.snapshot(self.current_snapshot)
        return self.current_snapshot

    async def close(self, sentence: str) -> None:
        self.lose(sentence)

    # Controlled by the test ------------------------------------------------------------------

    def up(self) -> None:
        self._listener.link_up(self.info)

    def down(self, sentence: str = "no contact") -> None:
        self._listener.link_down(self._cluster, sentence)

    def accept(self, task_id: str, attempt: int = 1) -> None:
        if self._first("accepted", task_id, attempt):
            self._listener.accepted(self._cluster, task_id, attempt)

    def begin(self, task_id: str, attempt: int = 1, *, at: float = 0.0, node_id: str = "n1") -> None:
        if (task_id, attempt) not in self._ahead and self._first("started", task_id, attempt):
            self._listener.started(self._cluster, task_id, attempt, at, node_id)

    def print(self, task_id: str, text: str, attempt: int = 1, *, stream: str = "stdout") -> None:
        """For a method of an actor, give the actor's id."""
        if (task_id, attempt) in self._open:
            self._listener.output(self._cluster, task_id, attempt, stream, text)

    def finish(self, task_id: str, payload: bytes = b"", attempt: int = 1, **values: Any) -> None:
        self._end((task_id, attempt), "succeeded", payload=payload, **values)

    def fail(self, task_id: str, failure: FailureClass = FailureClass.USER, attempt: int = 1, **values: Any) -> None:
        defaults = {"error_type": "ValueError", "message": "it failed"}
        self._end((task_id, attempt), "failed", failure=failure, **{**defaults, **values})

    def lose(self, sentence: str = "the cluster was lost") -> None:
        """The cluster is lost: every call is answered, and the link is closed."""
        if self.closed:
            return
        self.closed = True
        self._ahead.clear()
        for key in list(self._open):
            self._settle(_lost(self._call[key], sentence))
        self._listener.link_closed(self._cluster, sentence)

    def _place(self, key: Key) -> None:
        """Give the call a slot."""
        if self._answer is not None:
            asyncio.get_running_loop().call_soon(self._run, self._call[key], self._answer)

    def _run(self, call: Call, answer: Answer) -> None:
        self.accept(call.task_id, call.attempt)
        self.begin(call.task_id, call.attempt)
        if call.actor is None:
            self._settle(answer(call))

    def _first(self, what: str, task_id: str, attempt: int) -> bool:
        """Whether this is the first such report about an unanswered call that is no actor method."""
        reported = self._open.get((task_id, attempt))
        if reported is None or what in reported or self._call[task_id, attempt].method is not None:
            return False
        reported.add(what)
        return True

    def _end_soon(self, key: Key, **values: Any) -> None:
        asyncio.get_running_loop().call_soon(lambda: self._end(key, "cancelled", **values))

    def _end(self, key: Key, status: Any, **values: Any) -> None:
        if key in self._open:
            self._settle(CallResult(*key, status, actor_id=actor_of(self._call[key]), **values))

    def _settle(self, result: CallResult) -> None:
        key = (result.task_id, result.attempt)
        if self._open.pop(key, None) is None:
            return
        if key in self._ahead:
            self._ahead.remove(key)
        elif result.code != "RECALLED":
            self._take_over(key)
        self._listener.finished(self._cluster, result)

    def _take_over(self, ended: Key) -> None:
        """Give the slot of a task to the oldest waiting call with equal resources."""
        one = self._call[ended]
        if one.actor is not None or one.method is not None:
            return
        for waiting in self._ahead:
            if self._call[waiting].resources == one.resources:
                self._ahead.remove(waiting)
                self._listener.moved(self._cluster, ended, waiting)
                self._place(waiting)
                return

    async def _answer_or_time_out(self, timeout: float) -> None:
        if self.closed or not self.answers:
            await asyncio.sleep(0 if self.closed else timeout)
            raise ClusterConnectionError(
                f"cluster {self._cluster!r} did not answer within {timeout:g} s.", cluster=self._cluster
            )


def _method(call_id: str, actor: Key) -> Call:
    """The known fields of a call that an earlier process sent."""
    return Call(call_id, 1, 0, call_id, "", b"", b"", {}, method=MethodCall(*actor, "", 0))


def _lost(call: Call, sentence: str) -> CallResult:
    return CallResult(
        call.task_id,
        call.attempt,
        "failed",
        failure=FailureClass.CLUSTER,
        error_type="ClusterLostError",
        code="CLUSTER_LOST",
        message=sentence,
        actor_id=actor_of(call),
    )
