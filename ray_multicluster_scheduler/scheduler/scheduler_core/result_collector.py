"""ResultCollector: hears what happens on the links, keeps values and output, and tells the machine."""

from __future__ import annotations

from collections.abc import Callable

from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult, LinkInfo
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchAccepted,
    Event,
    HeadSilent,
    LinkClosed,
    LinkDown,
    LinkUp,
    PlaceMoved,
    SnapshotTaken,
    Started,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.secret_masker import SecretMasker


class ResultCollector:
    """The LinkListener of every link. The newest answer of each item is kept until it is forgotten."""

    def __init__(self, post: Callable[[Event], None], output: OutputStore) -> None:
        self._post = post
        self._output = output
        self._results: dict[str, CallResult] = {}
        self._hear_method: Callable[[CallResult], None] | None = None
        self.secret_masker = SecretMasker(lambda _: None)
        """Whoever knows the items puts one here that knows their secrets."""

    def route_methods(self, hear: Callable[[CallResult], None]) -> None:
        """Answers to calls of actors' methods go there: they are no items of the machine."""
        self._hear_method = hear

    def result(self, task_id: str) -> CallResult | None:
        """The last attempt's answer."""
        return self._results.get(task_id)

    def forget(self, task_id: str) -> None:
        """Nobody will ask for it any more."""
        self._results.pop(task_id, None)

    def link_up(self, info: LinkInfo) -> None:
        self._post(LinkUp(info.cluster, info.python_version, info.ray_version, info.session_id))

    def link_down(self, cluster: str, sentence: str) -> None:
        self._post(LinkDown(cluster, sentence))

    def link_closed(self, cluster: str, sentence: str) -> None:
        self._post(LinkClosed(cluster, sentence))

    def head_silent(self, cluster: str, silent_s: float) -> None:
        self._post(HeadSilent(cluster, silent_s))

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None:
        self._post(DispatchAccepted(task_id, attempt))

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None:
        self._post(Started(task_id, attempt, at, node_id))

    def moved(self, cluster: str, ended: tuple[str, int], begun: tuple[str, int]) -> None:
        self._post(PlaceMoved(ended, begun))

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        self._output.write(task_id, attempt, stream, self.secret_masker.text(task_id, text))

    def dropped(self, cluster: str, task_id: str, attempt: int, characters: int) -> None:
        self._output.count_dropped(task_id, attempt, characters)

    def finished(self, cluster: str, result: CallResult) -> None:
        if result.actor_id is not None:
            if self._hear_method is not None:
                self._hear_method(result)
            return
        self._finished(cluster, self.secret_masker.result(result))

    def _finished(self, cluster: str, result: CallResult) -> None:
        """Keep a masked result of an item and report it."""
        kept = self._results.get(result.task_id)
        if kept is None or kept.attempt <= result.attempt:  # else it is late: its attempt was given up long ago
            self._results[result.task_id] = result
        self._report(result)

    def _report(self, result: CallResult) -> None:
        self._output.close(result.task_id, result.attempt)
        self._post(
            AttemptFinished(
                result.task_id,
                result.attempt,
                result.status,
                result.failure,
                result.error_type,
                result.code,
                result.message,
                result.took,
                result.started_at,
                result.node_id,
            )
        )

    def when_durable(self, deed: Callable[[], object]) -> None:
        deed()  # answers live and die with the program

    def hold_until_delivered(self, call_id: str, deed: Callable[[], object]) -> bool:
        return False  # so do they here

    def snapshot(self, snapshot: ResourceSnapshot) -> None:
        self._post(SnapshotTaken(snapshot))
