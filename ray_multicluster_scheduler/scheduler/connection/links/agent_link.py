"""AgentLink: the ClusterLink to one agent, over the connection that the agent made to us or that we made to it.

Created by ``RayClientPool``. Reads and writes messages, sends heartbeats, and decides when a disconnected agent is
dead. ``CallTracker`` and ``RemoteValues`` handle the messages about calls and values.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.frames import FrameError, FrameWriter, Message
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import AgentConnection
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.streams import (
    read_messages,
    write_if_idle,
    write_some,
)
from ray_multicluster_scheduler.scheduler.connection.links.call_tracker import CallTracker
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, LinkInfo, LinkListener
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CLUSTER_RESTARTED, PROCESSES_DEAD
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import RemoteValues

_log = get_logger(__name__)
_CLOSE_TIMEOUT_S, _STOP_TIMEOUT_S = 3.0, 5.0
_CLOSED = "the link to the cluster is closed"
_CODES = {CLUSTER_RESTARTED: "CLUSTER_RESTARTED", PROCESSES_DEAD: "PROCESSES_DEAD"}
"""Codes of lost calls by the reason; CLUSTER_LOST for any other."""


class AgentLink:
    """The link to one agent of one cluster.

    ``death_reason`` asks the carrier why the agent is dead, if that is known. Only that and the end of the lease prove
    that an attempt behind a broken connection is dead. ``stop_agent`` stops the agent's job if possible; it is called
    before calls are declared dead by the lease alone.

    ``inherited``: the previous process started the agent and gave it calls; the link waits for it to reconnect. Results
    of methods that are not adopted are kept until ``orphan_ttl_s`` after it reconnected. The previous process extended
    its lease by ``away_s``.
    """

    def __init__(
        self,
        cluster: str,
        agent: str,
        listener: LinkListener,
        clock: Clock,
        *,
        heartbeat_s: float,
        lease_s: float,
        lost_after_s: float,
        death_reason: Callable[[], Awaitable[str | None]],
        stop_agent: Callable[[], Awaitable[None]] | None = None,
        inherited: bool = False,
        away_s: float = 0.0,
        orphan_ttl_s: float = 120.0,
    ) -> None:
        self.cluster, self.agent, self._listener, self._clock = cluster, agent, listener, clock
        self._heartbeat_s, self._lease_s, self._lost_after_s = heartbeat_s, lease_s, lost_after_s
        self._death_reason, self._stop_agent, self._inherited = death_reason, stop_agent, inherited
        self._info: LinkInfo | None = None
        self._outbox: FrameWriter | None = None
        self._can_send, self._snapshot_arrived, self._disconnected = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._values = RemoteValues(cluster, agent, self._send)
        self._calls = CallTracker(cluster, listener, self._send, self._values, inherited=inherited)
        self._orphan_ttl_s, self._away_s = orphan_ttl_s, away_s
        self._announced_s: float | None = None
        self._absence_acknowledged, self._lingers, self.lease_renewed = (asyncio.Event() for _ in range(3))
        """``lease_renewed``: the agent sent a PING after it was admitted, so it has received WELCOME."""
        self._last_contact = self._lease_renewed_at = time.monotonic()
        self._last_snapshot: ResourceSnapshot | None = None
        self._idle_writer: asyncio.StreamWriter | None = None
        """The connection's writer while the outbox is empty: a small message is then written at once."""
        self._pongs: dict[float, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None
        self.joined: asyncio.Future[LinkInfo] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._declared_dead = self.closing = self.closed_by_agent = False
        self.last_used = time.monotonic()
        if inherited:
            self._spawn(self._watch_disconnected())

    @property
    def info(self) -> LinkInfo:
        if self._info is None:
            raise ClusterConnectionError(f"the agent of {self.cluster!r} has not joined.", cluster=self.cluster)
        return self._info

    @property
    def connected(self) -> bool:
        return self._outbox is not None

    @property
    def idle_s(self) -> float:
        return 0.0 if len(self._calls) or len(self._values) else time.monotonic() - self.last_used

    @property
    def is_unused(self) -> bool:
        """Whether the agent is connected, without calls or values that this process or the next one may need."""
        in_use = self.closing or len(self._calls) or len(self._values) or self._calls.expects_orphans
        return self.connected and not in_use

    @property
    def return_wait_s(self) -> float | None:
        """Seconds for which the link still waits for an inherited agent; None if it is not inherited or has
        returned."""
        if not self._inherited or self._info is not None or self.ended.is_set():
            return None
        return max(0.0, self._lease_renewed_at + self._lost_after_s + self._away_s - time.monotonic())

    # Requests of the control plane --------------------------------------------------------------------

    def submit(self, calls: Sequence[Call]) -> None:
        self.last_used = time.monotonic()
        self._calls.submit(calls)
        self._fail_if_ended()

    def adopt(self, task_id: str, attempt: int) -> None:
        self._calls.adopt((task_id, attempt))
        self._fail_if_ended()

    def adopt_method(self, call_id: str, actor: tuple[str, int], output_owner: tuple[str, int]) -> None:
        self._calls.adopt_method((call_id, 1), actor, output_owner)
        self._fail_if_ended()

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        self._calls.cancel((task_id, attempt), force)

    def start(self, task_id: str, attempt: int) -> None:
        self._calls.start((task_id, attempt))

    def recall(self, task_id: str, attempt: int) -> None:
        self._calls.recall((task_id, attempt))

    async def fetch(self, task_id: str, attempt: int) -> bytes:
        return await self._values.fetch((task_id, attempt))

    def release_value(self, task_id: str, attempt: int) -> None:
        self._values.release((task_id, attempt))

    def release_values_older_than(self, seconds: float) -> None:
        self._values.release_older_than(seconds)

    async def health(self, timeout: float) -> float:
        started = time.monotonic()
        pong = self._pongs.setdefault(started, asyncio.get_running_loop().create_future())
        self._send(m.PING, {"t": started})
        try:
            await self._answered(pong, timeout)
        finally:
            self._pongs.pop(started, None)
        return time.monotonic() - started

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        self._snapshot_arrived.clear()
        self._send(m.PROBE, {})
        await self._answered(asyncio.ensure_future(self._snapshot_arrived.wait()), timeout)
        if self._last_snapshot is None:
            raise ClusterConnectionError(f"cluster {self.cluster!r} sent no snapshot.", cluster=self.cluster)
        return self._last_snapshot

    async def close(self, sentence: str) -> None:
        """End the agent; report what is still pending as lost."""
        self.closing = True
        if not self.ended.is_set() and self.connected:
            self._send(m.CLOSE, {"sentence": sentence})
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._disconnected.wait()
                self.closed_by_agent = True
            except TimeoutError:
                _log.warning("the agent of cluster %s did not close its connection when asked to end", self.cluster)
        await self._drop(sentence)

    async def leave(self, seconds: float, token: str, sentence: str) -> bool:
        """End the agent's work, and let it wait for the next program for ``seconds``; report what is still pending as
        lost. False: it did not confirm, and has to be stopped."""
        self.closing = True
        if self.connected:
            self._send(m.LINGER, {"seconds": seconds, "token": token})
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._lingers.wait()
        self.closed_by_agent = self._lingers.is_set()
        await self._drop(sentence)
        return self.closed_by_agent

    async def announce_absence(self, away_s: float) -> bool:
        """Extend the agent's lease by ``away_s``, until the next process starts. True: it confirmed."""
        self.closing, self._announced_s = True, away_s
        self._send(m.AWAY, {"seconds": away_s}, urgent=True)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._absence_acknowledged.wait()
        except TimeoutError:  # its lease stays as it was
            return False
        return True

    async def park(self) -> None:
        """Disconnect without reports: the agent and its calls are left to the next process."""
        self.closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _drop(self, sentence: str) -> None:
        self._end(sentence)
        self._calls.drop_orphaned_results()
        await self.park()

    def _fail_if_ended(self) -> None:
        if self.ended.is_set():
            self._calls.fail_all(_CLOSED)

    async def _answered(self, answer: asyncio.Future[Any], timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await answer
        except TimeoutError:
            raise ClusterConnectionError(
                f"the agent of cluster {self.cluster!r} did not answer within {timeout:g} s.",
                cluster=self.cluster,
                next_step="check whether the cluster's head is overloaded or unreachable",
            ) from None

    # The connection -----------------------------------------------------------------------------------

    def welcome(self) -> dict[str, Any]:
        """The WELCOME message. Raises PermissionError: an agent that was declared dead must end when it returns."""
        if self.ended.is_set() or self._declared_dead:
            raise PermissionError(f"the link to cluster {self.cluster!r} has ended")
        self._lease_renewed_at = time.monotonic()  # like a PONG: the agent's lease counts from its HELLO
        return {"lease_s": self._lease_s, "heartbeat_s": self._heartbeat_s}

    def admitted(self, connection: AgentConnection) -> None:
        """The agent has a connection, its first or a new one."""
        if self.ended.is_set() or self._declared_dead:  # since WELCOME; it is rejected when it dials again
            connection.writer.transport.abort()
            return
        if self._serving is not None:
            self._serving.cancel()
        first = self._info is None
        self._info = link_info(self.cluster, connection.hello)
        self._serving = self._spawn(self._serve(connection, first))

    async def _serve(self, connection: AgentConnection, first: bool) -> None:
        self._outbox = outbox = FrameWriter()
        self._disconnected.clear()
        self._idle_writer = None  # of the connection that this one replaces
        self._last_contact = time.monotonic()
        if not self.joined.done():
            self.joined.set_result(self.info)
        self._calls.connected(again=not first or self._inherited, protocol=self.info.protocol)
        self._values.connected()
        if self._announced_s is not None:
            self._send(m.AWAY, {"seconds": self._announced_s}, urgent=True)
        self._listener.link_up(self.info)
        if first and self._inherited:
            asyncio.get_running_loop().call_later(self._orphan_ttl_s, self._calls.drop_orphaned_results)
        children = [
            asyncio.create_task(self._read(connection)),
            asyncio.create_task(self._write(connection.writer, outbox)),
            asyncio.create_task(self._send_heartbeats()),
        ]
        reason = "the connection was closed"
        try:
            done, _ = await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)
            for child in done:
                child.result()
        except Exception as error:  # noqa: BLE001 - after any error the pending calls must be watched
            reason = str(error) or type(error).__name__
        finally:
            for child in children:
                child.cancel()
            await asyncio.gather(*children, return_exceptions=True)
            connection.writer.transport.abort()  # drops buffered bytes, which must not arrive any more
            if self._outbox is outbox:
                self._outbox = None
                self._disconnected.set()
                self._calls.disconnected()
        if not self.ended.is_set():
            silent_s = time.monotonic() - self._lease_renewed_at - self._away_s
            self._listener.link_down(self.cluster, f"the link to cluster {self.cluster!r} broke: {reason}", silent_s)
            self._spawn(self._watch_disconnected())

    async def _read(self, connection: AgentConnection) -> None:
        self._handle_all(connection.early)

        def handle(messages: list[Message]) -> None:
            self._last_contact = time.monotonic()
            self._handle_all(messages)

        await read_messages(connection.reader, connection.writer, connection.frames, handle)

    async def _write(self, writer: asyncio.StreamWriter, outbox: FrameWriter) -> None:
        while True:
            while write_some(writer, outbox):
                await writer.drain()
            self._can_send.clear()
            if not outbox:
                self._idle_writer = writer
                try:
                    await self._can_send.wait()
                finally:
                    if self._idle_writer is writer:
                        self._idle_writer = None

    async def _send_heartbeats(self) -> None:
        while True:
            self._send(m.PING, {"t": time.monotonic()})
            await asyncio.sleep(self._heartbeat_s)
            silent_s = time.monotonic() - self._last_contact
            if silent_s > 3 * self._heartbeat_s:
                raise TimeoutError(f"the agent sent nothing for {silent_s:.1f} s")

    async def _watch_disconnected(self) -> None:
        """Wait until the agent returns or is known to be dead."""
        reported: str | None = None
        while not self.connected and not self.ended.is_set():
            reason = await self._ask_death_reason()
            if self.connected:
                return
            certain = reported is not None or reason == PROCESSES_DEAD  # a new dashboard may miss a job once
            if reason is not None and certain:
                _log.warning("agent %s of cluster %s has ended: %s", self.agent, self.cluster, reason)
                text = f"the agent in cluster {self.cluster!r} has ended: {reason}"
                if reason == PROCESSES_DEAD:
                    self._listener.processes_dead(self.cluster, text)
                self._end(text, _CODES.get(reason, "CLUSTER_LOST"))
            elif time.monotonic() > self._lease_renewed_at + self._lost_after_s + self._away_s:
                self._declared_dead = True
                await self._try_to_stop_agent()
                self._end(
                    f"cluster {self.cluster!r} sent nothing for {self._lost_after_s + self._away_s:g} s; "
                    f"its agent ended all calls after {self._lease_s + self._away_s:g} s"
                )
            else:
                reported = reason
                await asyncio.sleep(min(1.0, self._heartbeat_s))

    async def _try_to_stop_agent(self) -> None:
        """The lease has expired; if the agent's clock is wrong, stopping its job ends its calls."""
        if self._stop_agent is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._stop_agent()
        except Exception as error:  # noqa: BLE001 - the lease has decided; stopping the job is a second safeguard
            _log.warning("agent %s of cluster %s cannot be stopped: %r", self.agent, self.cluster, error)

    async def _ask_death_reason(self) -> str | None:
        try:
            return await self._death_reason()
        except Exception:  # noqa: BLE001 - the link must go on to check the lease
            _log.exception("cannot find out whether agent %s of cluster %s has ended", self.agent, self.cluster)
            return None

    def _end(self, sentence: str, code: str = "CLUSTER_LOST") -> None:
        """All calls behind this link have ended: report the pending ones as lost."""
        if self.ended.is_set():
            return
        self.ended.set()
        self._outbox = None
        self.joined.cancel()  # does nothing if it has joined
        self._calls.disconnected()
        self._calls.fail_all(sentence, code)
        self._values.fail_all(sentence)
        self._listener.link_closed(self.cluster, sentence)

    # Messages -----------------------------------------------------------------------------------------

    def _handle_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            try:
                self._handle(message)
            except Exception as error:
                _log.exception("cannot read a message %r of the agent of cluster %s", message.kind, self.cluster)
                raise FrameError(f"the message {message.kind!r} cannot be read: {error!r}") from error

    def _handle(self, message: Message) -> None:
        head = message.head
        match message.kind:
            case m.SNAPSHOT:
                self._last_snapshot = resource_snapshot(self.info, head, self._clock.now())
                self._snapshot_arrived.set()
                self._listener.snapshot(self._last_snapshot)
            case m.HEAD:
                self._listener.head_silent(self.cluster, float(head["silent_s"]))
            case m.PING:
                self._lease_renewed_at, self._away_s = time.monotonic(), 0.0
                self.lease_renewed.set()
                self._send(m.PONG, head, urgent=True)
            case m.PONG:
                pong = self._pongs.get(head.get("t", 0.0))
                if pong is not None and not pong.done():
                    pong.set_result(None)
            case m.AWAY:
                self._absence_acknowledged.set()
            case m.LINGER:
                self._lingers.set()
            case m.FINISHED:
                self.last_used = time.monotonic()
                self._calls.handle(message)
            case kind if not self._calls.handle(message) and not self._values.handle(message):
                _log.warning("the agent of cluster %s sent an unknown message %r", self.cluster, kind)

    def _send(
        self, kind: str, head: dict[str, Any], blobs: Sequence[bytes] = (), *, urgent: bool = False, lazy: bool = False
    ) -> bool:
        """True if no later message can overtake this one. A lazy message waits a moment so that others join it."""
        if self._outbox is None:
            return False
        in_order = self._outbox.put(Message(kind, head, blobs), urgent=urgent)
        if lazy:
            asyncio.get_running_loop().call_later(m.LAZY_S, self._can_send.set)
        elif not write_if_idle(self._idle_writer, self._outbox):
            self._can_send.set()
        return in_order

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def link_info(cluster: str, hello: dict[str, Any]) -> LinkInfo:
    """Decode what the agent reports about itself in HELLO."""
    carrier = hello.get("carrier")
    texts = ("ray_version", "python_version", "session_id", "os", "arch", "job_id")
    return LinkInfo(
        cluster=cluster,
        carrier=carrier if carrier in ("dial_in", "ray_client") else "agent",
        protocol=int(hello["protocol"]),
        lock_file=str(hello.get("lock_file") or ""),
        **{name: str(hello[name]) for name in texts},
    )


def resource_snapshot(info: LinkInfo, head: dict[str, Any], now: float) -> ResourceSnapshot:
    """Decode a SNAPSHOT message."""
    return ResourceSnapshot(
        cluster=info.cluster,
        taken_at=now,
        nodes=tuple(NodeSnapshot.from_dict(node) for node in head["nodes"]),
        source="agent",
        session_id=info.session_id,
        ray_version=info.ray_version,
        python_version=info.python_version,
        os=info.os,
        arch=info.arch,
        observed=head.get("observed"),
    )
