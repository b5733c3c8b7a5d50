"""The link agent: it dials back to its control plane from inside a cluster, and runs there what it is given.

It lives on borrowed time: when its control plane was not heard for ``lease_s``, it ends what it runs, and
itself. A connection that breaks before that is dialled again, and nothing is lost by it.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterable
from typing import Any

import ray

from ray_multicluster_scheduler.common.frames import FrameError, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_channel import LEAVING
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actors import Actors
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, record_from
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import Calls
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.gangs import Gangs
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_executor import Hands
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key, Reporter
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.result_polling import PAUSE_S
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.results import Results
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.shared_object_cache import KeptByDigest
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.values import Values
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.agent_identity import who_we_are
from ray_multicluster_scheduler.scheduler.connection.gateway.link.dial import CannotDial, Connection, Join, dial
from ray_multicluster_scheduler.scheduler.connection.gateway.link.lease import Lease
from ray_multicluster_scheduler.scheduler.connection.gateway.link.probe import Probe, object_store_bytes
from ray_multicluster_scheduler.scheduler.connection.gateway.link.socket_write import write_at_once
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker_server import WorkerServer

_MANY_CALLS, _GATHER_S = 16, 0.003
_KEPT_FUNCTIONS, _KEPT_FUNCTION_BYTES = 1000, 256 * 1024 * 1024
_KEPT_OBJECTS, _SHARE_FOR_OBJECTS, _LEAST_FOR_OBJECTS = 100_000, 0.4, 64 * 1024 * 1024
"""Objects that calls share may fill this part of the object store."""

_SHORTEST_SILENCE_S = 5.0
"""The head of a busy machine may take a few seconds to answer, and that is no trouble."""


class Closed(Exception):
    """The control plane told us to end."""


class LeaseOver(Exception):
    """The control plane does not count on us any more, and gives our calls to others."""


class Agent:
    """One agent process; everything here runs on its event loop unless said otherwise."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._loop = asyncio.get_running_loop()
        self._hands = Hands(self._wake_from_any_thread, self._look_later)
        self._calls = Calls(join.cluster, join.own_modules, self._hands, self._wake)
        self._lease = Lease()
        self._workers = WorkerServer(self._hear_worker, self._lease.grant_s, self._actor_line)
        self._actors = Actors(
            join.cluster,
            join.own_modules,
            self._hands,
            self._calls,
            self._loop.call_later,
            self._is_ready,
            self._workers.tell_actor,
        )
        self._gangs = Gangs(join.cluster, join.own_modules, self._hands, self._calls, self._actors, self._is_ready)
        self._functions = KeptByDigest(_KEPT_FUNCTIONS, _KEPT_FUNCTION_BYTES)
        self._objects = KeptByDigest(_KEPT_OBJECTS, _LEAST_FOR_OBJECTS)
        self._reporter = Reporter(self.send, self.backlog)
        self._results = Results(self, self._reporter, self._calls.read_back)
        self._values = Values(self, self._calls.values, self._calls.read)
        self._outbox: FrameWriter | None = None
        self._can_send = asyncio.Event()
        self._at_rest: asyncio.StreamWriter | None = None
        """Of the connection, while it has nothing to write: what is small need not wait for the next round."""
        self._woken = self._collecting = self._telling = self._looking = False
        self._last_contact = time.monotonic()
        self._heartbeat_s = 0.0
        self._secret: str | None = None
        self._snapshot: dict[str, Any] | None = None

    async def run(self) -> None:
        """Serve until told to end (Closed) or until nobody counts on us any more (CannotDial, Rejected)."""
        who = who_we_are(self._join.carrier)
        connection = await dial(self._join, who, None, time.monotonic() + self._join.first_join_s)
        self._secret = str(connection.welcome["secret"])
        self._lease.seconds = float(connection.welcome["lease_s"])
        self._lease.answered(connection.asked_at)
        self._heartbeat_s = float(connection.welcome["heartbeat_s"])
        self._calls.line = await self._workers.start(ray.util.get_node_ip_address(), self._lease.seconds)
        self._objects.most_bytes = max(int(object_store_bytes() * _SHARE_FOR_OBJECTS), _LEAST_FOR_OBJECTS)
        probe = Probe(
            tell=self._tell_from_any_thread,
            busy=lambda: len(self._calls.records) > len(self._actors) + self._gangs.of_actors,
        )
        try:
            while True:
                await self._serve(connection, probe)
                self._check_lease()
                connection = await dial(self._join, who, self._secret, self._lease.until)
                self._lease.back(connection.asked_at)
        except LeaseOver as error:
            raise CannotDial(str(error)) from None

    async def _serve(self, connection: Connection, probe: Probe) -> None:
        """One connection, until it breaks."""
        self._last_contact = time.monotonic()
        self._outbox = FrameWriter()
        tasks = [
            asyncio.create_task(self._read(connection, probe)),
            asyncio.create_task(self._write(connection.writer)),
            asyncio.create_task(self._beat(probe)),
        ]
        self._calls.collect()  # what ended meanwhile is among the unacknowledged
        self._values.resume()
        self._results.resume(self._calls.moves(), self._calls.unacknowledged.values())
        if self._snapshot is not None and not self._head_is_silent(probe):  # else it tells of what was
            self.send(m.SNAPSHOT, self._snapshot)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (Closed, LeaseOver):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs the connection and not what runs here
            print(f"rmcs agent: the connection broke ({type(error).__name__}: {error}); dialling again", flush=True)
        finally:
            self._outbox = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            connection.writer.transport.abort()

    def _check_lease(self) -> None:
        if self._lease.left_s() < 0:
            raise LeaseOver(f"the control plane answered nothing for {self._lease.whole_s:g} s: the lease is over")

    async def _read(self, connection: Connection, probe: Probe) -> None:
        self._hear_all(connection.early, probe)
        while data := await connection.reader.read(1 << 18):
            self._check_lease()  # first: a process that was stopped and wakes up must not take what lay in its buffers
            self._last_contact = time.monotonic()
            self._hear_all(connection.frames.feed(data), probe)
        raise ConnectionResetError("closed by the other side")

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while self._outbox is not None:
            while data := self._outbox.take():
                writer.write(data)
                await writer.drain()
                self._results.send()
                self._values.send()
                self._reporter.drained()
            self._can_send.clear()
            if not self._outbox:
                self._at_rest = writer
                try:
                    await self._can_send.wait()
                finally:
                    self._at_rest = None

    async def _beat(self, probe: Probe) -> None:
        while True:
            self.send(m.PING, {"t": time.monotonic()}, urgent=True)
            if self._head_is_silent(probe):
                self.send(m.HEAD, {"silent_s": probe.silent_s()})
            await asyncio.sleep(self._heartbeat_s)
            self._check_lease()
            if time.monotonic() - self._last_contact > max(3 * self._heartbeat_s, 1.0):
                raise TimeoutError("three heartbeats were missed")

    def _head_is_silent(self, probe: Probe) -> bool:
        return probe.silent_s() > max(3 * self._heartbeat_s, _SHORTEST_SILENCE_S)

    def _hear_all(self, messages: list[Message], probe: Probe) -> None:
        """What cannot be handled costs this connection, never the process and all that it runs."""
        for message in messages:
            try:
                self._hear(message, probe)
            except Closed:
                raise
            except Exception as error:
                traceback.print_exc()
                raise FrameError(f"the message {message.kind!r} cannot be handled: {error!r}") from error

    def _hear(self, message: Message, probe: Probe) -> None:
        head = message.head
        match message.kind:
            case m.CALLS:
                self._take(head["calls"], message.blobs)
            case m.CANCEL:
                self._cancel((head["id"], head["attempt"]), bool(head["force"]))
            case m.START:
                self._calls.start(_keys(head))
            case m.RECALL:
                self._calls.recall(_keys(head))
            case m.ACK:
                self._calls.forget(_keys(head))
                self._actors.forget(_keys(head))
                self._gangs.forget(_keys(head))
            case m.RESUME:
                self._resume(_keys(head), of_before=bool(head.get("before")), again=bool(head.get("again")))
            case m.FETCH:
                self._values.fetch(_keys(head))
            case m.RELEASE:
                self._values.release(_keys(head))
            case m.PROBE:
                probe.now()
            case m.PING:
                self.send(m.PONG, head, urgent=True)
            case m.PONG:
                self._lease.answered(head.get("t"))
            case m.AWAY:
                self._lease.away(float(head["seconds"]))
                self.send(m.AWAY, {}, urgent=True)
            case m.CLOSE:
                raise Closed(str(head.get("sentence")))
            case _:
                print(f"rmcs agent: a message of unknown kind {message.kind!r} was ignored", flush=True)

    def _take(self, calls: list[dict[str, Any]], blobs: Any) -> None:
        taken: list[Key] = []
        lacking: list[Key] = []
        repeated: list[CallRecord] = []
        for call in calls:
            record = record_from(call, blobs, self._functions, self._objects)
            if record is None:  # something was dropped here to make room, and is sent again with the call
                lacking.append((call["id"], call["attempt"]))
                continue
            taken.append(record.key)
            known = self._calls.records.get(record.key)
            if known is not None:  # a repeated one is the same call, and who repeats it may not know that it began
                repeated.append(known)
                continue
            if record.method is not None:
                self._actors.call(record)
            elif record.actor is not None:
                self._actors.make(record, record.actor)
            elif record.gang is not None:
                self._gangs.make(record, record.gang)
            else:
                self._calls.accept(record)
        self.send(m.ACCEPTED, {"keys": taken}, lazy=True)
        self._tell_again(repeated)
        if lacking:
            self.send(m.UNKNOWN, {"keys": lacking})

    def _cancel(self, key: Key, force: bool) -> None:
        record = self._calls.records.get(key)
        if record is None or record.head is not None:
            return
        if record.method is not None:
            self._actors.cancel_method(record)
        elif record.actor is not None:
            self._actors.cancel(record)
        elif record.gang is not None:
            self._gangs.cancel(record, force)
        else:
            self._calls.cancel(record, force)

    def _resume(self, keys: list[Key], *, of_before: bool, again: bool) -> None:
        """Say which calls arrived, and what they did; those that did not arrive are sent again, if who sent them is
        still there. With ``again``, answers that were told are told once more."""
        known = [key for key in keys if key in self._calls.records]
        unknown = [key for key in keys if key not in self._calls.records]
        self.send(m.ACCEPTED, {"keys": known})
        self.send(m.UNKNOWN, {"keys": unknown})
        records = [self._calls.records[key] for key in known]
        self._tell_again(records)
        if of_before:
            for record in records:
                self._actors.wait_no_longer(record)
        if again:
            self._results.add(record for record in records if record.head is not None and not record.waits_for_output)

    def _tell_again(self, records: Iterable[CallRecord]) -> None:
        """What they did so far, of those that are not over."""
        self._reporter.catch_up(
            (record.key, record.report) for record in records if record.head is None and record.method is None
        )

    def _hear_worker(self, message: Message) -> None:
        head = message.head
        key = (str(head["id"]), int(head["attempt"]))
        record = self._calls.records.get(key)
        if record is None:
            return
        if message.kind == "started" and "member" in head:
            self._gangs.started(key, int(head["member"]), float(head["at"]), str(head["node"]))
        elif message.kind == "started" and record.head is None:
            self._reporter.started(key, record.report, float(head["at"]), str(head["node"]))
        elif message.kind == "output":
            self._reporter.output(record.output_key, record.report, [(stream, text) for stream, text in head["parts"]])
            self._results.output_came()
        elif message.kind == LEAVING:
            self._actors.leaves(key)

    def _actor_line(self, actor: Key, is_open: bool) -> None:
        self._actors.line(actor, is_open)

    def _is_ready(self, record: CallRecord, at: float, node: str) -> None:
        if record.part_of is not None and record.member is not None:
            self._gangs.started(record.part_of, record.member, at, node)
            return
        self._reporter.started(record.key, record.report, at, node)

    def _wake_from_any_thread(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._collect)

    def _wake(self) -> None:
        if not self._woken and not self._collecting:
            self._woken = True
            self._loop.call_soon(self._collect)

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_later(PAUSE_S, self._look)

    def _look(self) -> None:
        self._looking, self._collecting = False, True
        try:
            self._hands.look()
        finally:
            self._collecting = False
        self._tell_ended()

    def _collect(self) -> None:
        self._woken, self._collecting = False, True
        try:
            self._hands.catch_up()
        finally:
            self._collecting = False
        if self._telling:
            return
        if len(self._calls.records) - len(self._calls.unacknowledged) < _MANY_CALLS:
            self._tell_ended()
        else:
            # Each message costs both ends more than what it says; nobody waits for one of so many.
            self._telling = True
            self._loop.call_later(_GATHER_S, self._tell_ended)

    def _tell_ended(self) -> None:
        self._telling = False
        moves, ended = self._calls.collect()
        self._results.moved(moves)
        self._results.add(ended)

    def _tell_from_any_thread(self, seen: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._tell_snapshot, seen)

    def _tell_snapshot(self, seen: dict[str, Any]) -> None:
        self._snapshot = seen
        self.send(m.SNAPSHOT, seen)
        self._actors.nodes_seen({str(node["node_id"]) for node in seen["nodes"]})

    def backlog(self) -> int | None:
        """See :class:`results.Line`."""
        return None if self._outbox is None else self._outbox.pending_bytes

    def connection(self) -> object:
        """See :class:`results.Line`."""
        return self._outbox

    def send(
        self, kind: str, head: dict[str, Any], blobs: Any = (), *, urgent: bool = False, lazy: bool = False
    ) -> None:
        """Without a connection this does nothing. A lazy message waits a moment for others to travel with."""
        if self._outbox is None:
            return
        self._outbox.put(Message(kind, head, blobs), urgent=urgent)
        if lazy:
            self._loop.call_later(m.LAZY_S, self._can_send.set)
        elif not write_at_once(self._at_rest, self._outbox):
            self._can_send.set()


def _keys(head: dict[str, Any]) -> list[Key]:
    return [(str(task_id), int(attempt)) for task_id, attempt in head["keys"]]
