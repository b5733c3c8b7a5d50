"""FakeLink: a cluster in memory. Calls end when a test says so, or by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.cluster_link import Call, CallResult, LinkInfo, LinkListener
from tests.support.links import idle_snapshot, link_info

Answer = Callable[[Call], CallResult]
Key = tuple[str, int]


def success(call: Call) -> CallResult:
    """An automatic answer: every call succeeds with its own arguments as the value."""
    return CallResult(call.task_id, call.attempt, "succeeded", payload=call.arguments)


class FakeLink:
    """Keeps the promises of ClusterLink. With ``answer``, calls are accepted, started and answered on the loop
    by themselves; without, a test does it with accept(), start(), finish() and fail().

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
        self.calls: list[Call] = []
        self.cancelled: list[tuple[str, int, bool]] = []
        self.obeys_cancel, self.answers, self.closed = obeys_cancel, True, False
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

    # ClusterLink ----------------------------------------------------------------------------------------

    def submit(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.calls.append(call)
            self._open[call.task_id, call.attempt] = set()
            if self.closed:
                self._settle(_lost((call.task_id, call.attempt), "the link is closed"))
            elif self._answer is not None:
                asyncio.get_running_loop().call_soon(self._run, call, self._answer)

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        if (task_id, attempt) not in self._open:
            return
        self.cancelled.append((task_id, attempt, force))
        if self.obeys_cancel:
            asyncio.get_running_loop().call_soon(self._settle, CallResult(task_id, attempt, "cancelled"))

    async def health(self, timeout: float) -> float:
        await self._answer_or_time_out(timeout)
        return 0.0

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        await self._answer_or_time_out(timeout)
        self._listener.snapshot(self.current_snapshot)
        return self.current_snapshot

    async def close(self, sentence: str) -> None:
        self.lose(sentence)

    # What a test makes happen over there ------------------------------------------------------------------

    def up(self) -> None:
        self._listener.link_up(self.info)

    def down(self, sentence: str = "no contact") -> None:
        self._listener.link_down(self._cluster, sentence)

    def accept(self, task_id: str, attempt: int = 1) -> None:
        if self._first("accepted", task_id, attempt):
            self._listener.accepted(self._cluster, task_id, attempt)

    def start(self, task_id: str, attempt: int = 1, *, at: float = 0.0, node_id: str = "n1") -> None:
        if self._first("started", task_id, attempt):
            self._listener.started(self._cluster, task_id, attempt, at, node_id)

    def print(self, task_id: str, text: str, attempt: int = 1, *, stream: str = "stdout") -> None:
        if (task_id, attempt) in self._open:
            self._listener.output(self._cluster, task_id, attempt, stream, text)

    def finish(self, task_id: str, payload: bytes = b"", attempt: int = 1) -> None:
        self._settle(CallResult(task_id, attempt, "succeeded", payload=payload))

    def fail(self, task_id: str, failure: FailureClass = FailureClass.USER, attempt: int = 1, **values: Any) -> None:
        defaults = {"error_type": "ValueError", "message": "it failed"}
        self._settle(CallResult(task_id, attempt, "failed", failure=failure, **{**defaults, **values}))

    def lose(self, sentence: str = "the cluster was lost") -> None:
        """Nothing runs there any more: every call is answered, and the link is over."""
        if self.closed:
            return
        self.closed = True
        for key in list(self._open):
            self._settle(_lost(key, sentence))
        self._listener.link_closed(self._cluster, sentence)

    def _run(self, call: Call, answer: Answer) -> None:
        self.accept(call.task_id, call.attempt)
        self.start(call.task_id, call.attempt)
        self._settle(answer(call))

    def _first(self, what: str, task_id: str, attempt: int) -> bool:
        """Is the call unanswered, and was this not said of it before?"""
        said = self._open.get((task_id, attempt))
        if said is None or what in said:
            return False
        said.add(what)
        return True

    def _settle(self, result: CallResult) -> None:
        if self._open.pop((result.task_id, result.attempt), None) is not None:
            self._listener.finished(self._cluster, result)

    async def _answer_or_time_out(self, timeout: float) -> None:
        if self.closed or not self.answers:
            await asyncio.sleep(0 if self.closed else timeout)
            raise ClusterConnectionError(
                f"cluster {self._cluster!r} did not answer within {timeout:g} s.", cluster=self._cluster
            )


def _lost(key: Key, sentence: str) -> CallResult:
    return CallResult(
        *key, "failed", None, FailureClass.CLUSTER, "ClusterLostError", code="CLUSTER_LOST", message=sentence
    )
