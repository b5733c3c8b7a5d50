"""CallTracker: the calls of one link, whatever its connection does: what is owed, what was asked for, what is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ray_multicluster_scheduler.common.frames import PROTOCOL_VERSION, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.call_sender import CallSender
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, CallResult, LinkListener
from ray_multicluster_scheduler.scheduler.connection.links.link_messages import (
    NOT_KNOWN,
    ON_ITS_WAY,
    ended_before_it_left,
    lost,
    message_keys,
    not_sendable,
    of_older_agent,
    result_from,
)
from ray_multicluster_scheduler.scheduler.connection.links.orphaned_results import OrphanedResults
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import Key, PendingCall, PendingCalls
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import RemoteValues

_WITH_LIVES = 3
"""From this protocol on, an agent can order calls of several processes of one control plane."""


class Send(Protocol):
    """Puts a message into the outbox; True if no later one can overtake it. Without a connection it does nothing."""

    def __call__(self, kind: str, head: dict[str, Any], blobs: Sequence[bytes] = (), *, lazy: bool = False) -> bool: ...


class CallTracker:
    """Keeps the promises of ClusterLink about calls. What cannot be sent now is still owed; it is sent when
    the agent is back and says that it lacks it. ``of_before``: answers to methods' calls that the process before ours
    sent may come before they are asked for, and are kept until :meth:`drop_orphaned_results`."""

    def __init__(
        self, cluster: str, listener: LinkListener, send: Send, values: RemoteValues, *, of_before: bool = False
    ) -> None:
        self._cluster, self._listener, self._send, self._values = cluster, listener, send, values
        self._owed = PendingCalls()
        self._unclaimed = OrphanedResults() if of_before else None
        self._sender: CallSender | None = None
        self._behind: dict[Key, list[Call]] = {}
        self._protocol = PROTOCOL_VERSION
        self._unheard: set[Key] = set()
        """Answers to calls of methods that were told, and not heard by whoever made them."""
        self._unkept = 0
        """Messages with answers that were told, and are not durable yet."""

    def __len__(self) -> int:
        """What the agent still has for us: calls that are owed, and answers that it alone has for certain."""
        unclaimed = 0 if self._unclaimed is None else len(self._unclaimed)
        return len(self._owed) + len(self._unheard) + self._unkept + unclaimed

    @property
    def of_before(self) -> bool:
        """It may have what the process before ours asked for, without our knowing of it yet."""
        return self._unclaimed is not None

    # What is asked for ----------------------------------------------------------------------------------

    def submit(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._owed.add(call)
        self._send_calls(calls)

    def adopt(self, key: Key) -> None:
        """It was sent by somebody before us, and is owed to us now."""
        self._owed.adopt(key)
        self._send(m.RESUME, {"keys": [key]})

    def adopt_method(self, key: Key, actor: Key, output_owner: Key) -> None:
        """The same for the call of a method, whose answer may have come already."""
        answer = None if self._unclaimed is None else self._unclaimed.claim(key)
        self._owed.adopt_method(key, actor, output_owner)
        if answer is None:
            self._send(m.RESUME, {"keys": [key], "before": True})
        elif answer.payload is None:
            self._send(m.RESUME, {"keys": [key], "again": True})
        else:
            self._finished([answer.head], [answer.payload])

    def drop_orphaned_results(self) -> None:
        """Answers that nobody asked for so far are not wanted, nor are later ones."""
        keys = [] if self._unclaimed is None else self._unclaimed.clear()
        self._unclaimed = None
        if keys:
            self._send(m.ACK, {"keys": keys}, lazy=True)

    def cancel(self, key: Key, force: bool) -> None:
        debt = self._owed.get(key)
        if debt is not None:
            debt.cancelled, debt.force = True, debt.force or force
            self._ask(key, debt)

    def start(self, key: Key) -> None:
        debt = self._owed.get(key)
        if debt is not None and not debt.place:
            debt.place = True
            self._ask(key, debt)

    def recall(self, key: Key) -> None:
        debt = self._owed.get(key)
        if debt is not None and not debt.recalled:
            debt.recalled = True
            self._ask(key, debt)

    def _ask(self, key: Key, debt: PendingCall) -> None:
        """Everything that was asked for this call; asking again does no harm."""
        if debt.place:
            self._send(m.START, {"keys": [key]})
        if debt.recalled:
            self._send(m.RECALL, {"keys": [key]})
        if debt.cancelled:
            self._send(m.CANCEL, {"id": key[0], "attempt": key[1], "force": debt.force})

    # The connection -------------------------------------------------------------------------------------

    def connected(self, *, again: bool, protocol: int = PROTOCOL_VERSION) -> None:
        """There is a connection, and its other end may have anything or nothing of what was sent before."""
        self._protocol = protocol
        self._sender = CallSender(self._send, self._refuse)
        self._behind.clear()
        if again:
            owed = self._owed.items()
            self._send(m.RESUME, {"keys": [key for key, debt in owed if not debt.of_before]})
            before = [key for key, debt in owed if debt.of_before]
            if before:
                self._send(m.RESUME, {"keys": before, "before": True})
            for key, debt in owed:
                self._ask(key, debt)

    def disconnected(self) -> None:
        self._sender = None

    def answer_all_lost(self, sentence: str, *, restarted: bool = False) -> None:
        """Nothing runs over there any more; where the cluster ``restarted``, its other nodes may not know it yet."""
        for key, debt in self._owed.clear():
            self._listener.finished(self._cluster, lost(key, debt, sentence, restarted=restarted))

    # What the agent says --------------------------------------------------------------------------------

    def hear(self, message: Message) -> bool:
        """False: the message is not about calls."""
        head = message.head
        match message.kind:
            case m.FINISHED:
                self._finished(head["results"], message.blobs)
            case m.ACCEPTED:
                self._accepted(message_keys(head))
            case m.STARTED:
                for task_id, attempt, at, node in head["calls"]:
                    if self._owed.started((task_id, attempt)):
                        self._listener.started(self._cluster, task_id, attempt, float(at), str(node))
            case m.MOVED:
                for *ended, task_id, attempt in head["slots"]:
                    self._moved((str(ended[0]), int(ended[1])), (str(task_id), int(attempt)))
            case m.OUTPUT:
                self._output((head["id"], head["attempt"]), head["parts"])
            case m.UNKNOWN:
                self._send_again(message_keys(head))
            case _:
                return False
        return True

    def _accepted(self, keys: list[Key]) -> None:
        for key in keys:
            debt = self._owed.accepted(key)
            if debt is not None:
                if debt.actor is None:
                    self._listener.accepted(self._cluster, *key)
                self._ask(key, debt)  # what was asked before may have overtaken the call, and was ignored then
            if self._sender is not None:
                self._sender.accepted(key)
            self._follow(key)

    def _moved(self, ended: Key, begun: Key) -> None:
        debt = self._owed.get(ended)
        if debt is not None and not debt.moved:
            debt.moved = True
            self._listener.moved(self._cluster, ended, begun)

    def _output(self, key: Key, parts: Iterable[Sequence[str]]) -> None:
        if key in self._owed:
            for stream, text in parts:
                self._listener.output(self._cluster, *key, stream, text)

    def _finished(self, results: list[dict[str, Any]], blobs: Sequence[Any]) -> None:
        keys = []
        for result, payload in zip(results, blobs, strict=True):
            key = (result["id"], result["attempt"])
            debt = self._owed.get(key)
            if key in self._unheard:  # it was told before, and whoever made it may not have it yet
                continue
            if debt is None and self._unclaimed is not None and result.get("method"):
                keys += self._unclaimed.keep(key, result, payload)
                continue
            if debt is None or debt.actor is None or not self._until_heard(key):
                keys.append(key)
            if "kept" in result:
                self._values.is_there(key)
            if debt is None:
                continue
            answer = result_from(result, payload, debt, self._values.agent)
            of = debt.output_owner or key
            self._output(of, result.get("parts", ()))
            if result.get("dropped"):
                self._listener.dropped(self._cluster, of[0], of[1], int(result["dropped"]))
            self._owed.settle(key)
            self._listener.finished(self._cluster, answer)
        if keys:
            self._unkept += 1
            self._listener.when_durable(lambda: self._kept(keys))

    def _kept(self, keys: list[Key]) -> None:
        self._unkept -= 1
        self._send(m.ACK, {"keys": keys}, lazy=True)

    def _until_heard(self, key: Key) -> bool:
        def forget() -> None:
            self._unheard.discard(key)
            self._send(m.ACK, {"keys": [key]}, lazy=True)

        waits = self._listener.hold_until_delivered(key[0], forget)
        if waits:
            self._unheard.add(key)
        return waits

    def _send_again(self, keys: list[Key]) -> None:
        """These lack something there. Send them with all they need, unless their end was asked for meanwhile."""
        again = []
        for key in keys:
            debt = self._owed.get(key)
            call = None if debt is None else debt.call
            if self._sender is not None:
                self._sender.lacking(key, call)
            if debt is None:
                continue
            if call is None:
                self._settle(key, lost(key, debt, ON_ITS_WAY if debt.of_before else NOT_KNOWN))
            elif not debt.cancelled and not debt.recalled:
                again.append(call)
            elif call.method is None:
                self._settle(key, ended_before_it_left(key, debt))
            elif self._sender is not None:
                self._sender.skip(call)
        self._send_calls(again)

    # Sending --------------------------------------------------------------------------------------------

    def _send_calls(self, calls: Sequence[Call]) -> None:
        if self._sender is None:
            return
        ready = []
        for call in calls:
            if call.method is not None and call.method.life > 1 and self._protocol < _WITH_LIVES:
                key = (call.task_id, call.attempt)
                debt = self._owed.get(key)
                if debt is not None:
                    self._settle(key, of_older_agent(key, debt, self._cluster, self._protocol))
                continue
            if call.method is not None:
                actor = (call.method.actor_id, call.method.actor_attempt)
                debt = self._owed.get(actor)
                if debt is not None and debt.call is not None:  # it could overtake the making of its actor
                    self._behind.setdefault(actor, []).append(call)
                    continue
            ready.append(call)
        self._sender.send(ready)

    def _follow(self, actor: Key) -> None:
        """The making of this actor arrived, or never will; its methods can go."""
        waiting = self._behind.pop(actor, None)
        if waiting and self._sender is not None:
            self._sender.send(waiting)

    def _refuse(self, key: Key, error: Exception) -> None:
        debt = self._owed.get(key)
        if debt is not None:
            self._settle(key, not_sendable(key, debt, error))

    def _settle(self, key: Key, answer: CallResult) -> None:
        self._owed.settle(key)
        self._listener.finished(self._cluster, answer)
        self._follow(key)
