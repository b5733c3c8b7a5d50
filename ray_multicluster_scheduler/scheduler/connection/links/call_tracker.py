"""CallTracker: the calls of one ``AgentLink``, across all its connections: sends and re-sends them, repeats requests
about them, reports each event once to the LinkListener, and acknowledges results when they are durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ray_multicluster_scheduler.common.frames import PROTOCOL_VERSION, Message
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.common.several_returns import DISCARD, NEXT, STREAM
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.call_sender import CallSender
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, CallKey, CallResult, LinkListener
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import (
    OrphanedResults,
    PendingCall,
    PendingCalls,
)
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import RemoteValues

_PROTOCOL_WITH_LIVES = 3
"""From this protocol version on, an agent can order calls of several processes of one control plane."""
_PROTOCOL_WITH_GENERATORS = 4
_UNKNOWN_CALL = "the agent does not know this call any more"
_UNKNOWN_INHERITED_CALL = "it was on its way when the service was restarted; whether it ran is not known"


def _of_generator(call: Call) -> bool:
    return call.streams or (call.method is not None and call.method.method.startswith((STREAM, NEXT, DISCARD)))


class Send(Protocol):
    """Puts a message into the outbox; True if no later one can overtake it. Does nothing without a connection."""

    def __call__(self, kind: str, head: dict[str, Any], blobs: Sequence[bytes] = (), *, lazy: bool = False) -> bool: ...


class CallTracker:
    """Keeps the guarantees of ClusterLink about calls. A call that cannot be sent now is sent when the agent reconnects
    and reports that it lacks it. ``inherited``: the agent belonged to the previous process, so results of its method
    calls may arrive before they are adopted; they are kept until :meth:`drop_orphaned_results`."""

    def __init__(
        self, cluster: str, listener: LinkListener, send: Send, values: RemoteValues, *, inherited: bool = False
    ) -> None:
        self._cluster, self._listener, self._send, self._values = cluster, listener, send, values
        self._pending = PendingCalls()
        self._orphans = OrphanedResults() if inherited else None
        self._sender: CallSender | None = None
        self._waiting_for_actor: dict[CallKey, list[Call]] = {}
        self._protocol = PROTOCOL_VERSION
        self._undelivered: set[CallKey] = set()
        """Method calls with reported results that their callers do not have yet."""
        self._undurable = 0
        """Messages with results that were reported and are not durable yet."""

    def __len__(self) -> int:
        """The number of pending calls, and of results that may still be lost without the agent."""
        orphans = 0 if self._orphans is None else len(self._orphans)
        return len(self._pending) + len(self._undelivered) + self._undurable + orphans

    @property
    def expects_orphans(self) -> bool:
        """Whether the agent may have calls of the previous process that were not adopted yet."""
        return self._orphans is not None

    # Requests of the control plane ------------------------------------------------------------------------

    def submit(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._pending.add(call)
        self._send_calls(calls)

    def adopt(self, key: CallKey) -> None:
        """Take over a call that the previous process sent."""
        self._pending.adopt(key)
        self._send(m.RESUME, {"keys": [key]})

    def adopt_method(self, key: CallKey, actor: CallKey, output_owner: CallKey) -> None:
        """Take over a method call that the previous process sent; its result may have arrived already."""
        orphan = None if self._orphans is None else self._orphans.claim(key)
        self._pending.adopt_method(key, actor, output_owner)
        if orphan is None:
            self._send(m.RESUME, {"keys": [key], "before": True})
        elif orphan.payload is None:
            self._send(m.RESUME, {"keys": [key], "again": True})
        else:
            self._finished([orphan.entry], [orphan.payload])

    def drop_orphaned_results(self) -> None:
        """Drop the results that were not adopted, and all later ones."""
        keys = [] if self._orphans is None else self._orphans.clear()
        self._orphans = None
        if keys:
            self._send(m.ACK, {"keys": keys}, lazy=True)

    def cancel(self, key: CallKey, force: bool) -> None:
        pending = self._pending.get(key)
        if pending is not None:
            pending.cancelled, pending.force = True, pending.force or force
            self._send_requests(key, pending)

    def start(self, key: CallKey) -> None:
        pending = self._pending.get(key)
        if pending is not None and not pending.start_requested:
            pending.start_requested = True
            self._send_requests(key, pending)

    def recall(self, key: CallKey) -> None:
        pending = self._pending.get(key)
        if pending is not None and not pending.recalled:
            pending.recalled = True
            self._send_requests(key, pending)

    def _send_requests(self, key: CallKey, pending: PendingCall) -> None:
        """Send all requests about this call; they are idempotent."""
        if pending.start_requested:
            self._send(m.START, {"keys": [key]})
        if pending.recalled:
            self._send(m.RECALL, {"keys": [key]})
        if pending.cancelled:
            self._send(m.CANCEL, {"id": key[0], "attempt": key[1], "force": pending.force})

    # The connection -------------------------------------------------------------------------------------

    def connected(self, *, again: bool, protocol: int = PROTOCOL_VERSION) -> None:
        """There is a new connection. ``again``: the agent may have any part of what was sent before."""
        self._protocol = protocol
        self._sender = CallSender(self._send, self._refuse)
        self._waiting_for_actor.clear()
        if again:
            calls = list(self._pending.items())
            self._send(m.RESUME, {"keys": [key for key, pending in calls if not pending.inherited]})
            inherited = [key for key, pending in calls if pending.inherited]
            if inherited:
                self._send(m.RESUME, {"keys": inherited, "before": True})
            for key, pending in calls:
                self._send_requests(key, pending)

    def disconnected(self) -> None:
        self._sender = None

    def fail_all(self, sentence: str, code: str = "CLUSTER_LOST") -> None:
        """Report every pending call as lost, with this code."""
        for key, pending in self._pending.pop_all():
            self._listener.finished(self._cluster, pending.lost(key, sentence, code))

    # Messages of the agent --------------------------------------------------------------------------------

    def handle(self, message: Message) -> bool:
        """False: the message is not about calls."""
        head = message.head
        match message.kind:
            case m.FINISHED:
                self._finished(head["results"], message.blobs)
            case m.ACCEPTED:
                self._accepted(m.message_keys(head))
            case m.STARTED:
                for task_id, attempt, at, node in head["calls"]:
                    if self._pending.mark_started((task_id, attempt)):
                        self._listener.started(self._cluster, task_id, attempt, float(at), str(node))
            case m.MOVED:
                for *ended, task_id, attempt in head["slots"]:
                    self._moved((str(ended[0]), int(ended[1])), (str(task_id), int(attempt)))
            case m.OUTPUT:
                self._output((head["id"], head["attempt"]), head["parts"])
            case m.UNKNOWN:
                self._send_again(m.message_keys(head))
            case _:
                return False
        return True

    def _accepted(self, keys: list[CallKey]) -> None:
        for key in keys:
            pending = self._pending.mark_accepted(key)
            if pending is not None:
                if pending.actor is None:
                    self._listener.accepted(self._cluster, *key)
                self._send_requests(key, pending)  # earlier ones may have overtaken the call, and were ignored
            if self._sender is not None:
                self._sender.accepted(key)
            self._send_methods_of(key)

    def _moved(self, ended: CallKey, begun: CallKey) -> None:
        pending = self._pending.get(ended)
        if pending is not None and not pending.moved:
            pending.moved = True
            self._listener.moved(self._cluster, ended, begun)

    def _output(self, key: CallKey, parts: Iterable[Sequence[str]]) -> None:
        if key in self._pending:
            for stream, text in parts:
                self._listener.output(self._cluster, *key, stream, text)

    def _finished(self, entries: list[dict[str, Any]], blobs: Sequence[Any]) -> None:
        acknowledged = []
        for entry, payload in zip(entries, blobs, strict=True):
            key = (entry["id"], entry["attempt"])
            pending = self._pending.get(key)
            if key in self._undelivered:  # sent again
                continue
            if pending is None and self._orphans is not None and entry.get("method"):
                acknowledged += self._orphans.add(key, entry, payload)
                continue
            if pending is None or pending.actor is None or not self._hold_until_delivered(key):
                acknowledged.append(key)
            if "kept" in entry:
                self._values.add(key)
            if pending is None:
                continue
            result = pending.finished(entry, payload, self._values.agent)
            owner = pending.output_owner or key
            self._output(owner, entry.get("parts", ()))
            if entry.get("dropped"):
                self._listener.dropped(self._cluster, owner[0], owner[1], int(entry["dropped"]))
            self._pending.pop(key, None)
            self._listener.finished(self._cluster, result)
        if acknowledged:
            self._undurable += 1
            self._listener.when_durable(lambda: self._acknowledge(acknowledged))

    def _acknowledge(self, keys: list[CallKey]) -> None:
        self._undurable -= 1
        self._send(m.ACK, {"keys": keys}, lazy=True)

    def _hold_until_delivered(self, key: CallKey) -> bool:
        def acknowledge() -> None:
            self._undelivered.discard(key)
            self._send(m.ACK, {"keys": [key]}, lazy=True)

        held = self._listener.hold_until_delivered(key[0], acknowledge)
        if held:
            self._undelivered.add(key)
        return held

    def _send_again(self, keys: list[CallKey]) -> None:
        """The agent lacks these calls, or functions or objects of theirs: send them again unless cancelled."""
        again = []
        for key in keys:
            pending = self._pending.get(key)
            call = None if pending is None else pending.call
            if self._sender is not None:
                self._sender.lacking(key, call)
            if pending is None:
                continue
            if call is None:
                self._finish(key, pending.lost(key, _UNKNOWN_INHERITED_CALL if pending.inherited else _UNKNOWN_CALL))
            elif not pending.cancelled and not pending.recalled:
                again.append(call)
            elif call.method is None:
                self._finish(key, pending.ended_before_sending(key))
            elif self._sender is not None:
                self._sender.send_cancelled(call)
        self._send_calls(again)

    # Sending --------------------------------------------------------------------------------------------

    def _send_calls(self, calls: Sequence[Call]) -> None:
        if self._sender is None:
            return
        ready = []
        for call in calls:
            if self._protocol < _PROTOCOL_WITH_GENERATORS and _of_generator(call):
                text = f"the agent of cluster {self._cluster!r} has an older version that runs no generators"
                self._fail((call.task_id, call.attempt), "TaskSubmissionError", code="OLDER_AGENT", text=text)
                continue
            if call.method is not None:
                if call.method.life > 1 and self._protocol < _PROTOCOL_WITH_LIVES:
                    text = (
                        f"the agent of cluster {self._cluster!r} has an older version (protocol {self._protocol}) that "
                        "takes no calls from a service that was restarted; create the actor again"
                    )
                    self._fail((call.task_id, call.attempt), "TaskSubmissionError", code="OLDER_AGENT", text=text)
                    continue
                actor = (call.method.actor_id, call.method.actor_attempt)
                creation = self._pending.get(actor)
                if creation is not None and creation.call is not None:  # the call could overtake this creation
                    self._waiting_for_actor.setdefault(actor, []).append(call)
                    continue
            ready.append(call)
        self._sender.send(ready)

    def _send_methods_of(self, actor: CallKey) -> None:
        """The creation of this actor arrived, or has ended without a start: send its method calls."""
        waiting = self._waiting_for_actor.pop(actor, None)
        if waiting and self._sender is not None:
            self._sender.send(waiting)

    def _refuse(self, key: CallKey, error: Exception) -> None:
        """Report a call that cannot be encoded, for this or any other cluster."""
        self._fail(key, type(error).__name__, m.NOT_SENDABLE, m.not_sendable_text(error))

    def _fail(self, key: CallKey, error_type: str, code: str, text: str) -> None:
        pending = self._pending.get(key)
        if pending is not None:
            self._finish(key, pending.failed(key, FailureClass.PERMANENT, error_type, code, text))

    def _finish(self, key: CallKey, result: CallResult) -> None:
        self._pending.pop(key, None)
        self._listener.finished(self._cluster, result)
        self._send_methods_of(key)
