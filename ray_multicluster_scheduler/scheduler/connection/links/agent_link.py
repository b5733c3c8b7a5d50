"""AgentLink: tasks reach a cluster through an agent there that dialled back to us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.frames import CHUNK_BYTES, FrameError, FrameWriter, Message
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import AgentConnection
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.socket_write import write_at_once
from ray_multicluster_scheduler.scheduler.connection.links.call_tracker import CallTracker
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, LinkInfo, LinkListener
from ray_multicluster_scheduler.scheduler.connection.links.link_messages import RESTARTED, link_info, resource_snapshot
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import await_answer
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import RemoteValues

_log = get_logger(__name__)
_CLOSE_PATIENCE_S, _END_PATIENCE_S = 3.0, 5.0


class AgentLink:
    """One agent of one cluster: its connection, what it owes us, and whether it still lives.

    ``is_over`` asks the Jobs API whether the agent's job has ended: together with the end of the lease, the
    only two ways to know that an attempt behind a broken connection is dead. ``end_agent`` stops that job if it
    can; it is asked to before calls are declared dead by the lease alone. ``of_before``: the agent was started by the
    process before ours, and has its calls; it is waited for from now on. What it says of methods that nobody here asked
    for is kept until ``unclaimed_s`` after it came back. It was told that nobody would answer for ``away_s``, so it may
    live for so much longer.
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
        is_over: Callable[[], Awaitable[str | None]],
        end_agent: Callable[[], Awaitable[None]] | None = None,
        of_before: bool = False,
        away_s: float = 0.0,
        unclaimed_s: float = 120.0,
    ) -> None:
        self._cluster, self._agent, self._listener, self._clock = cluster, agent, listener, clock
        self._heartbeat_s, self._lease_s, self._lost_after_s = heartbeat_s, lease_s, lost_after_s
        self._is_over, self._end_agent, self._of_before = is_over, end_agent, of_before
        self._info: LinkInfo | None = None
        self._outbox: FrameWriter | None = None
        self._can_send, self._snapshot_came, self._disconnected = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._values = RemoteValues(cluster, agent, self._send)
        self._calls = CallTracker(cluster, listener, self._send, self._values, of_before=of_before)
        self._unclaimed_s, self._away_s = unclaimed_s, away_s
        self._announced_s: float | None = None
        self._knows_that_we_leave, self.back = asyncio.Event(), asyncio.Event()
        """``back``: it has said something since it was let in, so it knows that it was."""
        self._last_contact = self._last_word = time.monotonic()
        self._last_snapshot: ResourceSnapshot | None = None
        self._at_rest: asyncio.StreamWriter | None = None
        """Of the connection, while it has nothing to write: what is small need not wait for the next round."""
        self._pongs: dict[float, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None
        self.joined: asyncio.Future[LinkInfo] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self._given_up = self.closing = self.closed_by_agent = False
        self.last_used = time.monotonic()
        if of_before:
            self._spawn(self._watch_the_silent())

    @property
    def cluster(self) -> str:
        return self._cluster

    @property
    def agent(self) -> str:
        return self._agent

    @property
    def info(self) -> LinkInfo:
        if self._info is None:
            raise ClusterConnectionError(f"the agent of {self._cluster!r} has not joined.", cluster=self._cluster)
        return self._info

    @property
    def connected(self) -> bool:
        return self._outbox is not None

    @property
    def idle_s(self) -> float:
        return 0.0 if len(self._calls) or len(self._values) else time.monotonic() - self.last_used

    @property
    def is_empty(self) -> bool:
        """It is there, and has nothing that anybody may still want, nor the process after ours."""
        return self.connected and not (self.closing or len(self._calls) or len(self._values) or self._calls.of_before)

    @property
    def return_wait_s(self) -> float | None:
        """For so much longer an agent of the process before ours is waited for; None if it is none, or came back."""
        if not self._of_before or self._info is not None or self.over.is_set():
            return None
        return max(0.0, self._last_word + self._lost_after_s + self._away_s - time.monotonic())

    # What the rest of the control plane asks for ------------------------------------------------------

    def submit(self, calls: Sequence[Call]) -> None:
        self.last_used = time.monotonic()
        self._calls.submit(calls)
        if self.over.is_set():
            self._calls.answer_all_lost("the link to the cluster is closed")

    def adopt(self, task_id: str, attempt: int) -> None:
        self._calls.adopt((task_id, attempt))
        if self.over.is_set():
            self._calls.answer_all_lost("the link to the cluster is closed")

    def adopt_method(self, call_id: str, actor: tuple[str, int], output_owner: tuple[str, int]) -> None:
        self._calls.adopt_method((call_id, 1), actor, output_owner)
        if self.over.is_set():
            self._calls.answer_all_lost("the link to the cluster is closed")

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        self._calls.cancel((task_id, attempt), force)

    def start(self, task_id: str, attempt: int) -> None:
        self._calls.start((task_id, attempt))

    def recall(self, task_id: str, attempt: int) -> None:
        self._calls.recall((task_id, attempt))

    async def fetch(self, task_id: str, attempt: int) -> bytes:
        return await self._values.fetch((task_id, attempt))

    def release_value(self, task_id: str, attempt: int) -> None:
        self._values.release_value((task_id, attempt))

    def release_values_older_than(self, seconds: float) -> None:
        self._values.release_values_older_than(seconds)

    async def health(self, timeout: float) -> float:
        began = time.monotonic()
        pong = self._pongs.setdefault(began, asyncio.get_running_loop().create_future())
        self._send(m.PING, {"t": began})
        try:
            await await_answer(pong, timeout, self._cluster)
        finally:
            self._pongs.pop(began, None)
        return time.monotonic() - began

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        self._snapshot_came.clear()
        self._send(m.PROBE, {})
        await await_answer(asyncio.ensure_future(self._snapshot_came.wait()), timeout, self._cluster)
        if self._last_snapshot is None:
            raise ClusterConnectionError(f"cluster {self._cluster!r} sent no snapshot.", cluster=self._cluster)
        return self._last_snapshot

    async def close(self, sentence: str) -> None:
        """Tell the agent to end; whatever it still owed is answered as lost."""
        self.closing = True
        if not self.over.is_set() and self.connected:
            self._send(m.CLOSE, {"sentence": sentence})
            try:
                async with asyncio.timeout(_CLOSE_PATIENCE_S):
                    await self._disconnected.wait()
                self.closed_by_agent = True
            except TimeoutError:
                _log.warning("the agent of cluster %s did not hang up when told to end", self._cluster)
        self._end(sentence)
        self._calls.drop_orphaned_results()
        await self.park()

    async def announce(self, away_s: float) -> bool:
        """Tell the agent that we stop, and that it takes so long until the next process is there. Did it hear it?"""
        self.closing, self._announced_s = True, away_s
        self._send(m.AWAY, {"seconds": away_s}, urgent=True)
        try:
            async with asyncio.timeout(_CLOSE_PATIENCE_S):
                await self._knows_that_we_leave.wait()
        except TimeoutError:  # then it lives for as long as it would have otherwise
            return False
        return True

    async def park(self) -> None:
        """Hang up, and say nothing to anybody: what runs over there is for the next process."""
        self.closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # The connection -----------------------------------------------------------------------------------

    def welcome(self) -> dict[str, Any]:
        """Raises PermissionError: an agent that comes back after it was declared dead must end."""
        if self.over.is_set() or self._given_up:
            raise PermissionError(f"the link to cluster {self._cluster!r} is over")
        self._last_word = time.monotonic()  # like a PONG: the agent's lease counts from when it said HELLO
        return {"lease_s": self._lease_s, "heartbeat_s": self._heartbeat_s}

    def admitted(self, connection: AgentConnection) -> None:
        """The agent dialled in, for the first time or again."""
        if self.over.is_set() or self._given_up:  # since it was welcomed; when it dials again it is told so
            connection.writer.transport.abort()
            return
        if self._serving is not None:
            self._serving.cancel()
        first = self._info is None
        self._info = link_info(self._cluster, connection.hello)
        self._serving = self._spawn(self._serve(connection, first))

    async def _serve(self, connection: AgentConnection, first: bool) -> None:
        self._outbox = outbox = FrameWriter()
        self._disconnected.clear()
        self._at_rest = None  # that of another connection, which this one takes the place of
        self._last_contact = time.monotonic()
        if not self.joined.done():
            self.joined.set_result(self.info)
        self._calls.connected(again=not first or self._of_before, protocol=self.info.protocol)
        self._values.connected()
        if self._announced_s is not None:
            self._send(m.AWAY, {"seconds": self._announced_s}, urgent=True)
        self._listener.link_up(self.info)
        if first and self._of_before:
            asyncio.get_running_loop().call_later(self._unclaimed_s, self._calls.drop_orphaned_results)
        children = [
            asyncio.create_task(self._read(connection)),
            asyncio.create_task(self._write(connection.writer, outbox)),
            asyncio.create_task(self._beat()),
        ]
        reason = "the connection was closed"
        try:
            done, _ = await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)
            for child in done:
                child.result()
        except Exception as error:  # noqa: BLE001 - whatever broke it, what is owed must be watched
            reason = str(error) or type(error).__name__
        finally:
            for child in children:
                child.cancel()
            await asyncio.gather(*children, return_exceptions=True)
            connection.writer.transport.abort()  # nothing that waits in a buffer may still arrive
            if self._outbox is outbox:
                self._outbox = None
                self._disconnected.set()
                self._calls.disconnected()
        if not self.over.is_set():
            self._listener.link_down(self._cluster, f"the link to cluster {self._cluster!r} broke: {reason}")
            self._spawn(self._watch_the_silent())

    async def _read(self, connection: AgentConnection) -> None:
        self._hear_all(connection.early)
        while data := await connection.reader.read(1 << 18):
            self._last_contact = time.monotonic()
            self._hear_all(connection.frames.feed(data))
        raise ConnectionResetError("closed by the agent")

    async def _write(self, writer: asyncio.StreamWriter, outbox: FrameWriter) -> None:
        while True:
            while data := outbox.take(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
            self._can_send.clear()
            if not outbox:
                self._at_rest = writer
                try:
                    await self._can_send.wait()
                finally:
                    if self._at_rest is writer:
                        self._at_rest = None

    async def _beat(self) -> None:
        while True:
            self._send(m.PING, {"t": time.monotonic()})
            await asyncio.sleep(self._heartbeat_s)
            silent = time.monotonic() - self._last_contact
            if silent > 3 * self._heartbeat_s:
                raise TimeoutError(f"nothing was heard from the agent for {silent:.1f} s")

    async def _watch_the_silent(self) -> None:
        """The connection is gone: wait for the agent's return, or until it is known to be dead."""
        before: str | None = None
        while not self.connected and not self.over.is_set():
            sentence = await self._ask_whether_over()
            if self.connected:
                return
            if sentence is not None and before is not None:  # a dashboard that just started may know of no job once
                _log.warning("agent %s of cluster %s has ended: %s", self._agent, self._cluster, sentence)
                self._end(
                    f"the agent in cluster {self._cluster!r} has ended: {sentence}", restarted=sentence == RESTARTED
                )
            elif time.monotonic() > self._last_word + self._lost_after_s + self._away_s:
                self._given_up = True
                await self._stop_agent()
                self._end(
                    f"nothing was heard from cluster {self._cluster!r} for {self._lost_after_s + self._away_s:g} s; "
                    f"what ran there has ended itself after {self._lease_s + self._away_s:g} s"
                )
            else:
                before = sentence
                await asyncio.sleep(min(1.0, self._heartbeat_s))

    async def _stop_agent(self) -> None:
        """Its lease is over; should its clock be wrong, ending its job ends what it runs."""
        if self._end_agent is None:
            return
        try:
            async with asyncio.timeout(_END_PATIENCE_S):
                await self._end_agent()
        except Exception as error:  # noqa: BLE001 - the lease has decided already; this is the second lock
            _log.warning("agent %s of cluster %s cannot be stopped: %r", self._agent, self._cluster, error)

    async def _ask_whether_over(self) -> str | None:
        try:
            return await self._is_over()
        except Exception:  # noqa: BLE001 - whatever it is, the end of the lease must still be seen
            _log.exception("whether agent %s of cluster %s is over cannot be told", self._agent, self._cluster)
            return None

    def _end(self, sentence: str, *, restarted: bool = False) -> None:
        """Nothing runs behind this link any more."""
        if self.over.is_set():
            return
        self.over.set()
        self._outbox = None
        self.joined.cancel()  # does nothing if it has joined
        self._calls.disconnected()
        self._calls.answer_all_lost(sentence, restarted=restarted)
        self._values.all_lost(sentence)
        self._listener.link_closed(self._cluster, sentence)

    # What the agent says ------------------------------------------------------------------------------

    def _hear_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            try:
                self._hear(message)
            except Exception as error:
                _log.exception("a message %r of the agent of cluster %s cannot be read", message.kind, self._cluster)
                raise FrameError(f"the message {message.kind!r} cannot be read: {error!r}") from error

    def _hear(self, message: Message) -> None:
        head = message.head
        match message.kind:
            case m.SNAPSHOT:
                self._take_snapshot(head)
            case m.HEAD:
                self._listener.head_silent(self._cluster, float(head["silent_s"]))
            case m.PING:
                self._last_word, self._away_s = time.monotonic(), 0.0
                self.back.set()
                self._send(m.PONG, head, urgent=True)
            case m.PONG:
                pong = self._pongs.get(head.get("t", 0.0))
                if pong is not None and not pong.done():
                    pong.set_result(None)
            case m.AWAY:
                self._knows_that_we_leave.set()
            case m.FINISHED:
                self.last_used = time.monotonic()
                self._calls.hear(message)
            case kind if not self._calls.hear(message) and not self._values.hear(message):
                _log.warning("the agent of cluster %s sent an unknown message %r", self._cluster, kind)

    def _take_snapshot(self, head: dict[str, Any]) -> None:
        self._last_snapshot = resource_snapshot(self.info, head, self._clock.now())
        self._snapshot_came.set()
        self._listener.snapshot(self._last_snapshot)

    # Sending ------------------------------------------------------------------------------------------

    def _send(
        self, kind: str, head: dict[str, Any], blobs: Sequence[bytes] = (), *, urgent: bool = False, lazy: bool = False
    ) -> bool:
        """True if no later message can overtake this one. A lazy one waits a moment for others to travel with."""
        if self._outbox is None:
            return False
        in_order = self._outbox.put(Message(kind, head, blobs), urgent=urgent)
        if lazy:
            asyncio.get_running_loop().call_later(m.LAZY_S, self._can_send.set)
        elif not write_at_once(self._at_rest, self._outbox):
            self._can_send.set()
        return in_order

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
