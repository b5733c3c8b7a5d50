"""Agent: connects to its control plane from inside a cluster, runs the calls that it receives, and watches the head.

Started by the gateway's ``__main__`` in a Ray job, or by ``GatewayHost`` in an actor. It holds a lease: when the
control plane has not answered for ``lease_s``, the agent ends, with all its calls. If the connection breaks earlier, it
reconnects and no call is lost. When its program ends, an idle agent may be released instead of closed (AgentReleased):
it then lingers for a while, so that the next program finds a running agent. It reports a head that does not answer.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterable
from typing import Any

import ray

from ray_multicluster_scheduler.common.frames import FrameError, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.actors import ActorRunner
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import (
    CallRecord,
    SharedObjectCache,
    record_from,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import CallRunner
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.gangs import GangRunner
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_threads import POLL_PAUSE_S, RayThreads
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reporting import (
    ProgressReporter,
    ResultSender,
    RetainedValues,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.cluster_probe import (
    ClusterProbe,
    agent_identity,
    object_store_bytes,
    session_folder,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import (
    CannotDial,
    Connection,
    Join,
    Lease,
    dial,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.link.streams import (
    read_messages,
    write_if_idle,
    write_some,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_channel import LEAVING
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker import this_node
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker_server import WorkerServer

_MANY_CALLS, _BATCH_DELAY_S = 16, 0.003
_MAX_FUNCTIONS, _MAX_FUNCTION_BYTES = 1000, 256 * 1024 * 1024
_MAX_OBJECTS, _OBJECT_STORE_SHARE, _MIN_OBJECT_BYTES = 100_000, 0.4, 64 * 1024 * 1024
"""Objects that calls share may fill this share of the object store."""

_HEAD_SILENT_S = 5.0
"""The head of a busy machine may normally take a few seconds to answer."""


class Closed(Exception):
    """The control plane closed this agent."""


class AgentReleased(Exception):
    """The control plane has left this agent to the next program, which must show ``token`` within ``seconds``."""

    def __init__(self, seconds: float, token: str) -> None:
        super().__init__(seconds, token)
        self.seconds, self.token = seconds, token


class LeaseExpired(Exception):
    """The lease has expired, so the control plane runs the agent's calls elsewhere."""


class Agent:
    """One agent process. Runs on the event loop, except where noted."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._loop = asyncio.get_running_loop()
        self._threads = RayThreads(self._wake_from_thread, self._schedule_poll)
        self._calls = CallRunner(join.cluster, join.own_modules, self._threads, self._wake)
        self._lease = Lease()
        self._workers = WorkerServer(
            self._handle_worker, self._lease.grant_s, self._calls.may_begin, self._actor_connection
        )
        self._actors = ActorRunner(
            self._threads, self._calls, self._loop.call_later, self._actor_ready, self._workers.send_to_actor
        )
        self._gangs = GangRunner(self._threads, self._calls, self._actors, self._actor_ready)
        self._functions = SharedObjectCache(_MAX_FUNCTIONS, _MAX_FUNCTION_BYTES)
        self._objects = SharedObjectCache(_MAX_OBJECTS, _MIN_OBJECT_BYTES)
        self._reporter = ProgressReporter(self.send, self.backlog)
        self._results = ResultSender(self, self._reporter, self._calls.read_back)
        self._values = RetainedValues(self, self._calls.retained, self._calls.read)
        self._outbox: FrameWriter | None = None
        self._can_send = asyncio.Event()
        self._idle_writer: asyncio.StreamWriter | None = None
        """The connection's writer while the outbox is empty, for :func:`write_if_idle`."""
        self._drain_scheduled = self._draining = self._batch_scheduled = self._poll_scheduled = False
        self._last_contact = time.monotonic()
        self._heartbeat_s = 0.0
        self._secret: str | None = None
        self._lock_file = ""
        """See process_lock; empty if it could not be made."""
        self._snapshot: dict[str, Any] | None = None
        self._released: AgentReleased | None = None

    async def run(self) -> None:
        """Serve until the control plane closes it (Closed), leaves it to another program (AgentReleased) or rejects it
        (Rejected), or the lease expires (CannotDial)."""
        try:
            self._lock_file = process_lock.create(session_folder())
        except OSError as error:
            print(f"rmcs agent: no lock file: {error}", flush=True)
        identity = {**agent_identity(self._join.carrier), "lock_file": self._lock_file}
        connection = await self._first_connection(identity)
        self._secret = str(connection.welcome["secret"])
        self._lease.seconds = float(connection.welcome["lease_s"])
        self._lease.answered(connection.asked_at)
        self._heartbeat_s = float(connection.welcome["heartbeat_s"])
        node = ray.util.get_node_ip_address()
        self._calls.agent_endpoint = await self._workers.start(node, self._lease.seconds, self._lock_file)
        self._objects.max_bytes = max(int(object_store_bytes() * _OBJECT_STORE_SHARE), _MIN_OBJECT_BYTES)
        probe = ClusterProbe(
            publish=lambda seen: self._loop.call_soon_threadsafe(self._send_snapshot, seen),
            is_busy=lambda: len(self._calls.records) > len(self._actors) + self._gangs.actor_gangs,
        )
        try:
            while True:
                await self._serve(connection, probe)
                if self._released is not None:
                    raise self._released
                self._check_lease()
                connection = await dial(self._join, identity, self._secret, self._lease.until)
                self._lease.reconnected(connection.asked_at)
        except LeaseExpired as error:
            raise CannotDial(str(error)) from None
        except (Closed, AgentReleased):
            await self._calls.cancelled_ended()
            raise
        finally:
            process_lock.remove(self._lock_file)

    async def _first_connection(self, identity: dict[str, Any]) -> Connection:
        """While it waits for the next program, a worker starts that can run the first task at once."""
        warm = ray.remote(this_node).options(num_cpus=0, max_retries=0).remote() if self._join.lingers else None
        try:
            return await dial(self._join, identity, None, time.monotonic() + self._join.first_join_s)
        except CannotDial:
            if self._join.lingers:
                process_lock.remove(self._lock_file)
                raise Closed(f"no program needed it within {self._join.first_join_s:g} s") from None
            raise
        finally:
            del warm

    async def _serve(self, connection: Connection, probe: ClusterProbe) -> None:
        """Serve one connection until it breaks."""
        self._last_contact = time.monotonic()
        self._outbox = FrameWriter()
        tasks = [
            asyncio.create_task(self._read(connection, probe)),
            asyncio.create_task(self._write(connection.writer)),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._watch_head(probe)),
        ]
        self._calls.collect()  # all that have ended are among the unacknowledged
        self._values.resume()
        self._results.resume(self._calls.unacknowledged_moves(), self._calls.unacknowledged.values())
        if self._snapshot is not None and probe.silent_s() < _HEAD_SILENT_S:  # else the snapshot is out of date
            self.send(m.SNAPSHOT, self._snapshot)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (Closed, LeaseExpired):
            raise
        except Exception as error:  # noqa: BLE001 - an error ends the connection, not the calls
            print(f"rmcs agent: the connection broke ({type(error).__name__}: {error}); reconnecting", flush=True)
        finally:
            self._outbox = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            connection.writer.transport.abort()

    def _check_lease(self) -> None:
        if self._lease.left_s() < 0:
            raise LeaseExpired(f"the control plane did not answer for {self._lease.total_s:g} s: the lease has expired")

    async def _read(self, connection: Connection, probe: ClusterProbe) -> None:
        self._handle_all(connection.early, probe)

        def handle(messages: list[Message]) -> None:
            self._check_lease()  # first: a process that was stopped and resumes must not use buffered messages
            self._last_contact = time.monotonic()
            self._handle_all(messages, probe)

        await read_messages(connection.reader, connection.writer, connection.frames, handle)

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while self._outbox is not None:
            while write_some(writer, self._outbox):
                await writer.drain()
                self._results.send()
                self._values.send()
                self._reporter.drained()
            self._can_send.clear()
            if not self._outbox:
                self._idle_writer = writer
                try:
                    await self._can_send.wait()
                finally:
                    self._idle_writer = None

    async def _beat(self) -> None:
        while True:
            self.send(m.PING, {"t": time.monotonic()}, urgent=True)
            await asyncio.sleep(self._heartbeat_s)
            self._check_lease()
            if time.monotonic() - self._last_contact > max(3 * self._heartbeat_s, 1.0):
                raise TimeoutError("three heartbeats were missed")

    async def _watch_head(self, probe: ClusterProbe) -> None:
        """Report the silence of the head when it has lasted long enough, and then with every heartbeat."""
        while True:
            silent_s = probe.silent_s()
            if silent_s >= _HEAD_SILENT_S:
                self.send(m.HEAD, {"silent_s": silent_s})
                await asyncio.sleep(self._heartbeat_s)
            else:
                await asyncio.sleep(_HEAD_SILENT_S - silent_s)

    # Messages of the control plane ------------------------------------------------------------------------

    def _handle_all(self, messages: list[Message], probe: ClusterProbe) -> None:
        """An error in a message ends this connection, never the process with all its calls."""
        for message in messages:
            try:
                self._handle(message, probe)
            except Closed:
                raise
            except Exception as error:
                traceback.print_exc()
                raise FrameError(f"the message {message.kind!r} cannot be handled: {error!r}") from error

    def _handle(self, message: Message, probe: ClusterProbe) -> None:
        head = message.head
        match message.kind:
            case m.CALLS:
                self._accept(head["calls"], message.blobs)
            case m.CANCEL:
                self._cancel((head["id"], head["attempt"]), bool(head["force"]))
            case m.START:
                self._calls.start(m.message_keys(head))
            case m.RECALL:
                self._recall(m.message_keys(head))
            case m.ACK:
                keys = m.message_keys(head)
                self._calls.forget(keys)
                self._actors.forget(keys)
                self._gangs.forget(keys)
            case m.RESUME:
                keys, again = m.message_keys(head), bool(head.get("again"))
                self._resume(keys, sender_is_gone=bool(head.get("before")), again=again)
            case m.FETCH:
                self._values.fetch(m.message_keys(head))
            case m.RELEASE:
                self._values.release(m.message_keys(head))
            case _:
                self._handle_link(message, probe)

    def _handle_link(self, message: Message, probe: ClusterProbe) -> None:
        """Messages that are not about calls."""
        head = message.head
        match message.kind:
            case m.PROBE:
                probe.now()
            case m.PING:
                self.send(m.PONG, head, urgent=True)
            case m.PONG:
                self._lease.answered(head.get("t"))
            case m.AWAY:
                self._lease.extend(float(head["seconds"]))
                self.send(m.AWAY, {}, urgent=True)
            case m.LINGER:
                self._released = AgentReleased(float(head["seconds"]), str(head["token"]))
                self.send(m.LINGER, {})
            case m.CLOSE:
                raise Closed(str(head.get("sentence")))
            case _:
                print(f"rmcs agent: a message of unknown kind {message.kind!r} was ignored", flush=True)

    def _accept(self, calls: list[dict[str, Any]], blobs: Any) -> None:
        accepted: list[Key] = []
        incomplete: list[Key] = []
        repeated: list[CallRecord] = []
        for call in calls:
            record = record_from(call, blobs, self._functions, self._objects)
            if record is None:  # the cache has dropped a function or object that it uses: ask for all of it again
                incomplete.append((call["id"], call["attempt"]))
                continue
            accepted.append(record.key)
            known = self._calls.records.get(record.key)
            if known is not None:  # sent twice, so its sender may not have received its progress
                repeated.append(known)
                continue
            if record.method is not None:
                self._actors.call(record)
            elif record.actor is not None:
                if record.actor["detached"]:
                    process_lock.remove(self._lock_file)  # it may start, without a lease, after the end of this agent
                self._actors.create(record, record.actor)
            elif record.gang is not None:
                self._gangs.create(record, record.gang)
            else:
                self._calls.accept(record)
        self.send(m.ACCEPTED, {"keys": accepted}, lazy=True)
        self._resend_progress(repeated)
        if incomplete:
            self.send(m.UNKNOWN, {"keys": incomplete})

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

    def _recall(self, keys: list[Key]) -> None:
        for key in keys:
            record = self._calls.records.get(key)
            if record is None or record.method is not None:
                continue
            if record.actor is not None:
                self._actors.recall(record)
            elif record.gang is not None:
                self._gangs.recall(record)
            else:
                self._calls.recall(record)

    def _resume(self, keys: list[Key], *, sender_is_gone: bool, again: bool) -> None:
        """Report which calls have arrived, and their progress; the control plane sends the others again, unless their
        sender is gone. With ``again``, also repeat results."""
        known = [key for key in keys if key in self._calls.records]
        unknown = [key for key in keys if key not in self._calls.records]
        self.send(m.ACCEPTED, {"keys": known})
        self.send(m.UNKNOWN, {"keys": unknown})
        records = [self._calls.records[key] for key in known]
        self._resend_progress(records)
        if sender_is_gone:
            for record in records:
                self._actors.skip_missing(record)
        if again:
            self._results.add(record for record in records if record.head is not None and not record.waits_for_output)

    def _resend_progress(self, records: Iterable[CallRecord]) -> None:
        """Report again the progress of those that have not ended."""
        self._reporter.resend(
            (record.key, record.progress) for record in records if record.head is None and record.method is None
        )

    # Messages of workers ----------------------------------------------------------------------------------

    def _handle_worker(self, message: Message) -> None:
        head = message.head
        key = (str(head["id"]), int(head["attempt"]))
        record = self._calls.records.get(key)
        if record is None:
            return
        if message.kind == "started":
            process = record if record.gang is None else record.gang.members[int(head["member"])]
            process.process = str(head["node"]), int(head["pid"])
        if message.kind == "started" and "member" in head:
            self._gangs.started(key, int(head["member"]), float(head["at"]), str(head["node"]))
        elif message.kind == "started" and record.head is None:
            self._reporter.started(key, record.progress, float(head["at"]), str(head["node"]))
        elif message.kind == "output":
            parts = [(stream, text) for stream, text in head["parts"]]
            self._reporter.output(record.output_key, record.progress, parts)
            self._results.output_arrived()
        elif message.kind == LEAVING:
            self._actors.leaves(key)

    def _actor_connection(self, actor: Key, is_open: bool) -> None:
        self._actors.connection_changed(actor, is_open)

    def _actor_ready(self, record: CallRecord, at: float, node: str) -> None:
        if record.gang_key is not None and record.member is not None:
            self._gangs.started(record.gang_key, record.member, at, node)
            return
        self._reporter.started(record.key, record.progress, at, node)

    # Results of Ray ---------------------------------------------------------------------------------------

    def _wake_from_thread(self) -> None:
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self._loop.call_soon_threadsafe(self._drain)

    def _wake(self) -> None:
        if not self._drain_scheduled and not self._draining:
            self._drain_scheduled = True
            self._loop.call_soon(self._drain)

    def _schedule_poll(self) -> None:
        if not self._poll_scheduled:
            self._poll_scheduled = True
            self._loop.call_later(POLL_PAUSE_S, self._poll)

    def _poll(self) -> None:
        self._poll_scheduled, self._draining = False, True
        try:
            self._threads.poll()
        finally:
            self._draining = False
        self._send_ended()

    def _drain(self) -> None:
        self._drain_scheduled, self._draining = False, True
        try:
            self._threads.drain()
        finally:
            self._draining = False
        if self._batch_scheduled:
            return
        if len(self._calls.records) - len(self._calls.unacknowledged) < _MANY_CALLS:
            self._send_ended()
        else:  # a message costs both ends more than a result; with so many calls, none of them is urgent
            self._batch_scheduled = True
            self._loop.call_later(_BATCH_DELAY_S, self._send_ended)

    def _send_ended(self) -> None:
        self._batch_scheduled = False
        moves, ended = self._calls.collect()
        self._results.send_moves(moves)
        self._results.add(ended)

    def _send_snapshot(self, snapshot: dict[str, Any]) -> None:
        self._snapshot = snapshot
        self.send(m.SNAPSHOT, snapshot)
        self._actors.nodes_changed({str(node["node_id"]) for node in snapshot["nodes"]})

    # ControlPlaneSender -----------------------------------------------------------------------------------

    def backlog(self) -> int | None:
        """The bytes that wait to be sent; None without a connection."""
        return None if self._outbox is None else self._outbox.pending_bytes

    def connection(self) -> object:
        """Identifies the current connection."""
        return self._outbox

    def send(
        self, kind: str, head: dict[str, Any], blobs: Any = (), *, urgent: bool = False, lazy: bool = False
    ) -> None:
        """Does nothing without a connection. A lazy message waits a moment for others to travel with."""
        if self._outbox is None:
            return
        self._outbox.put(Message(kind, head, blobs), urgent=urgent)
        if lazy:
            self._loop.call_later(m.LAZY_S, self._can_send.set)
        elif not write_if_idle(self._idle_writer, self._outbox):
            self._can_send.set()
