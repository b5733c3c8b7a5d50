"""FaultyLink: a reproducible faulty network between a link and its user.

    faults = Faults([Fault("drop", "started"), Fault("duplicate", "finished", task_id="t2")])
    link = FaultyLink(FakeLink("a", faults.between(listener)), faults)

What goes down (submit, cancel, start, recall) and what comes up (accepted, started, moved, output, finished,
snapshot) passes through the same Faults; a move is a message of the call that ended. A wrapped link breaks the
promises of ClusterLink on purpose; only what ``refuse``, ``cut`` and ``lose`` do is something that a sound link does,
too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallResult,
    ClusterLink,
    LinkInfo,
    LinkListener,
)

Action = Literal["delay", "drop", "duplicate", "reorder", "refuse"]
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """``times`` messages of this kind ("*": any), of this task if named, fare badly.

    delay: held for ``seconds``, or until release(). drop: gone. duplicate: comes twice. reorder: comes after the
    next message that passes. refuse (submit only): answered at once as a failure of the cluster.
    """

    action: Action
    kind: str = "*"
    task_id: str | None = None
    times: int = 1
    seconds: float | None = None


class Faults:
    """What goes wrong: planned faults first, then by chance from a seed, at a rate per action."""

    def __init__(
        self, planned: Iterable[Fault] = (), *, rates: Mapping[Action, float] | None = None, seed: int = 0
    ) -> None:
        self._planned = [[fault, fault.times] for fault in planned]
        self._rates = dict(rates or {})
        self._chance = random.Random(seed)
        self._held: list[Step] = []
        self._after_next: list[Step] = []
        self.is_cut = self.is_lost = False
        self.listener: LinkListener | None = None

    def add(self, fault: Fault) -> None:
        """One more, from now on."""
        self._planned.append([fault, fault.times])

    def between(self, listener: LinkListener) -> LinkListener:
        """What the inner link is given as its listener."""
        self.listener = listener
        return _FaultyListener(listener, self)

    def cut(self) -> None:
        """Nothing passes either way, until restore() or lose()."""
        self.is_cut = True

    def restore(self) -> None:
        """What was under way arrives now, in order."""
        self.is_cut = False
        self.release()

    def lose(self) -> None:
        """What is under way, and all that follows, is gone for ever."""
        self.is_lost = True
        self._held.clear()
        self._after_next.clear()

    def release(self, *, shuffle: bool = False) -> None:
        """Deliver all held messages; with ``shuffle`` in a random order by the seed."""
        waiting, self._held, self._after_next = self._held + self._after_next, [], []
        if shuffle:
            self._chance.shuffle(waiting)
        for step in waiting:
            step()

    def pass_on(self, kind: str, task_id: str, step: Step) -> None:
        """Deliver a message, with the fault that applies to it, if any."""
        if self.is_lost:
            return
        if self.is_cut:
            self._held.append(step)
            return
        fault = self.pick(kind, task_id, ("delay", "drop", "duplicate", "reorder"))
        match fault.action if fault else None:
            case "drop":
                return
            case "delay" if fault is not None and fault.seconds is not None:
                asyncio.get_running_loop().call_later(fault.seconds, self._arrive, step)
            case "delay":
                self._held.append(step)
            case "reorder":
                self._after_next.append(step)
            case action:
                overtaken, self._after_next = self._after_next, []
                for one in [step, *([step] if action == "duplicate" else []), *overtaken]:
                    one()

    def pick(self, kind: str, task_id: str, actions: Sequence[Action]) -> Fault | None:
        """The fault that applies to this message, if any; a planned one is used up."""
        for entry in self._planned:
            fault, left = entry
            if left and fault.action in actions and fault.kind in ("*", kind) and fault.task_id in (None, task_id):
                entry[1] -= 1
                return fault
        for action in actions:
            if self._chance.random() < self._rates.get(action, 0.0):
                return Fault(action)
        return None

    def _arrive(self, step: Step) -> None:
        if self.is_cut:
            self._held.append(step)
        elif not self.is_lost:
            step()


class FaultyLink:
    """A ClusterLink whose messages pass through faults."""

    def __init__(self, inner: ClusterLink, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    @property
    def cluster(self) -> str:
        return self._inner.cluster

    @property
    def info(self) -> LinkInfo:
        return self._inner.info

    @property
    def connected(self) -> bool:
        return self._inner.connected and not self._faults.is_cut and not self._faults.is_lost

    @property
    def idle_s(self) -> float:
        return self._inner.idle_s

    def submit(self, calls: Sequence[Call]) -> None:
        for call in calls:
            listener = self._faults.listener
            if listener is not None and self._faults.pick("submit", call.task_id, ("refuse",)):
                listener.finished(self.cluster, _refused(call))
            else:
                self._faults.pass_on("submit", call.task_id, lambda call=call: self._inner.submit([call]))

    def adopt(self, task_id: str, attempt: int) -> None:
        self._faults.pass_on("adopt", task_id, lambda: self._inner.adopt(task_id, attempt))

    def adopt_method(self, call_id: str, actor: tuple[str, int], output_owner: tuple[str, int]) -> None:
        self._faults.pass_on("adopt", call_id, lambda: self._inner.adopt_method(call_id, actor, output_owner))

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        self._faults.pass_on("cancel", task_id, lambda: self._inner.cancel(task_id, attempt, force=force))

    def start(self, task_id: str, attempt: int) -> None:
        self._faults.pass_on("start", task_id, lambda: self._inner.start(task_id, attempt))

    def recall(self, task_id: str, attempt: int) -> None:
        self._faults.pass_on("recall", task_id, lambda: self._inner.recall(task_id, attempt))

    async def health(self, timeout: float) -> float:
        await self._reach(timeout)
        return await self._inner.health(timeout)

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        await self._reach(timeout)
        return await self._inner.snapshot(timeout)

    async def close(self, sentence: str) -> None:
        await self._inner.close(sentence)

    async def _reach(self, timeout: float) -> None:
        if self._faults.is_cut or self._faults.is_lost:
            await asyncio.sleep(timeout)
            raise ClusterConnectionError(
                f"cluster {self.cluster!r} did not answer within {timeout:g} s.", cluster=self.cluster
            )


class _FaultyListener:
    """Passes reports on through faults. The link's own state (up, down, closed) is known here and always passes."""

    def __init__(self, listener: LinkListener, faults: Faults) -> None:
        self._listener, self._faults = listener, faults

    def link_up(self, info: LinkInfo) -> None:
        self._listener.link_up(info)

    def link_down(self, cluster: str, sentence: str, silent_s: float = 0.0) -> None:
        self._listener.link_down(cluster, sentence, silent_s)

    def link_closed(self, cluster: str, sentence: str) -> None:
        self._listener.link_closed(cluster, sentence)

    def head_silent(self, cluster: str, silent_s: float) -> None:
        self._listener.head_silent(cluster, silent_s)

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None:
        self._faults.pass_on("accepted", task_id, lambda: self._listener.accepted(cluster, task_id, attempt))

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None:
        self._faults.pass_on("started", task_id, lambda: self._listener.started(cluster, task_id, attempt, at, node_id))

    def moved(self, cluster: str, ended: tuple[str, int], begun: tuple[str, int]) -> None:
        self._faults.pass_on("moved", ended[0], lambda: self._listener.moved(cluster, ended, begun))

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        self._faults.pass_on("output", task_id, lambda: self._listener.output(cluster, task_id, attempt, stream, text))

    def dropped(self, cluster: str, task_id: str, attempt: int, characters: int) -> None:
        self._listener.dropped(cluster, task_id, attempt, characters)

    def finished(self, cluster: str, result: CallResult) -> None:
        self._faults.pass_on("finished", result.task_id, lambda: self._listener.finished(cluster, result))

    def when_durable(self, action: Callable[[], object]) -> None:
        self._listener.when_durable(action)

    def hold_until_delivered(self, call_id: str, action: Callable[[], object]) -> bool:
        return self._listener.hold_until_delivered(call_id, action)

    def snapshot(self, snapshot: ResourceSnapshot) -> None:
        self._faults.pass_on("snapshot", "", lambda: self._listener.snapshot(snapshot))


def _refused(call: Call) -> CallResult:
    return CallResult(
        call.task_id,
        call.attempt,
        "failed",
        failure=FailureClass.CLUSTER,
        error_type="ClusterConnectionError",
        code="REFUSED",
        message="the cluster refused the call",
        actor_id=None if call.method is None else call.method.actor_id,
    )
