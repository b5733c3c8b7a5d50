"""One connector after another for one agent: started, watched, killed when it hangs, and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import IS_NO_CONNECTOR, LinkProblem

_log = get_logger(__name__)
CONNECT_PATIENCE_S, FIND_PATIENCE_S = 60.0, 30.0
"""The first one ships our package and starts an actor, too."""
SILENCE_S = 5.0
FIRST_WORD_S = 10.0
"""From its start to what it says before all else. A Python takes a moment; what is no Python may take for ever."""
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_STEADY_S = 30.0
_TAIL_LINES = 5
_KILL_PATIENCE_S = 3.0
_END_PATIENCE_S = 5.0
"""For one that has hung up to end, and for one that was killed: what it started may hold its pipes open for ever."""
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a connector ended. ``code`` is that of a LinkProblem."""

    code: str
    sentence: str
    next_step: str = ""
    """Where that of its code does not help."""


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """The cluster answers, as ``session``, and there is no such gateway in it. ``dead``: its process has ended for
    sure. Else its node may only be cut off, and what it runs goes on for as long as its lease."""

    session: str
    why: str
    dead: bool


@dataclass(frozen=True, slots=True)
class Command:
    """How a connector is started."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    head: str | None = None
    """Where the cluster is by now; None: where the order says."""


class ConnectorProcess:
    """Keeps a connector alive for one agent, until :meth:`stop`, or until the gateway is known to be gone.

    The first one may make the gateway; those after it only find it. ``command`` is asked before each start: the
    configuration may have changed.
    """

    def __init__(self, order: o.Order, find: o.Order, command: Callable[[], Command], *, session: str = "") -> None:
        self._order, self._find, self._command = order, find, command
        self.session = session
        """Of the cluster, as the gateway told it; "" if it never did."""
        self.gone: GatewayGone | None = None
        self.failure: Failure | None = None
        """Of the last one that ended."""
        self.phase = "start"
        """What it is about to do."""
        self.may_exist = order.join is None
        """There was a gateway before us, or the making of one has begun."""
        self.ready = asyncio.Event()
        self.pid: int | None = None
        self._ever_ready = False
        self._process: asyncio.subprocess.Process | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._spoke = False
        self._persistence = asyncio.create_task(self._keep())

    async def wait_ended(self) -> Failure:
        """Until the first one has ended before it was ready, or nothing is left to be watched."""
        await asyncio.shield(self._persistence)
        if self.gone is not None:
            return Failure(o.BROKEN, f"the gateway ended at once: {self.gone.why or 'Ray does not say why'}")
        return self.failure or Failure(o.BROKEN, "the connector ended")

    async def kill_gateway(self) -> bool:
        """End the gateway, if the connector reaches it. True: it did."""
        if not self.ready.is_set():
            return False
        try:
            await self.ask(o.KILL, patience_s=_KILL_PATIENCE_S)
        except ClusterConnectionError:
            return False
        return True

    async def ask(self, order: str, patience_s: float = ANSWER_S, **more: Any) -> Any:
        """Give an order and wait for its answer. Raises ClusterConnectionError, also when the connector ends first: it
        may well beat while the cluster does not answer it."""
        cluster, process = self._order.cluster, self._process
        if not self.ready.is_set() or process is None or process.stdin is None:
            raise ClusterConnectionError(f"there is no connector to cluster {cluster!r} just now.", cluster=cluster)
        number = next(self._numbers)
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(json.dumps({"order": order, "id": number, **more}).encode() + b"\n")
            async with asyncio.timeout(patience_s):
                return await answer
        except TimeoutError:
            raise self._unanswered(f"no answer within {patience_s:g} s") from None
        finally:
            self._asked.pop(number, None)

    async def stop(self) -> None:
        """No connector is left afterwards. The gateway goes on until its lease ends."""
        self._persistence.cancel()
        await asyncio.gather(self._persistence, return_exceptions=True)

    async def _keep(self) -> None:
        tries = 0
        while self.gone is None:
            began = time.monotonic()
            try:
                self.failure = await self._one(self._find if self._ever_ready else self._order)
            except Exception as error:  # noqa: BLE001 - whatever it was: without a keeper its cluster stays lost
                _log.exception("what the connector of cluster %s did was not foreseen", self._order.cluster)
                self.failure = Failure(o.BROKEN, f"the connector failed: {type(error).__name__}: {error}")
            if not self._ever_ready and self._order.join is not None:
                return  # it may or may not have made the gateway: whoever started it decides
            if self.gone is not None:
                why = self.gone.why or "Ray does not say why"
                _log.warning("the gateway %s of cluster %s is gone: %s", self._order.agent, self._order.cluster, why)
                return
            _log.warning("the connector of cluster %s is replaced: %s", self._order.cluster, self.failure.sentence)
            tries = 0 if time.monotonic() - began > _STEADY_S else tries + 1
            await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])

    async def _one(self, order: o.Order) -> Failure:
        """From its start to its end, by itself or by us."""
        self.phase, self._spoke = "start", False
        try:
            command = self._command()
        except ConfigurationError as error:
            return Failure(o.TOKEN_REFUSED, error.message.rstrip("."))
        except LinkProblem as problem:
            return Failure(problem.code, problem.message.rstrip("."))
        if command.head is not None:
            order = replace(order, head=command.head)
        starting = asyncio.ensure_future(_start(command))
        cancelled = await _until_done(starting)
        try:
            process = starting.result()
        except OSError as error:
            if cancelled is not None:
                raise cancelled from error
            return Failure(o.BROKEN, f"{command.argv[0]} cannot be started: {error.strerror or error}")
        assert process.stdin is not None  # nosec B101 # it was asked for above
        self._process, self.pid = process, process.pid
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        reading = asyncio.create_task(_keep_tail(process, tail))
        try:
            if cancelled is not None:
                raise cancelled
            process.stdin.write(order.line())
            failure = await self._listen(
                process, command.argv[0], FIND_PATIENCE_S if order.join is None else CONNECT_PATIENCE_S
            )
            if failure is None:
                await _ended(process, reading)
                code = process.returncode
                ended = "hung up and did not end" if code is None else f"ended ({_exit(code)})"
                said = " | ".join(tail) or "it said nothing"
                failure = Failure(
                    o.BROKEN,
                    f"the connector {ended} while it was to {self.phase}: {said}",
                    "" if self._spoke else IS_NO_CONNECTOR,
                )
            return failure
        finally:
            self.ready.clear()
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(self._unanswered("the connector ended"))
            self._process = self.pid = None
            _kill(process)
            process.stdin.close()
            ending = asyncio.ensure_future(_is_gone(process, reading))
            cancelled = await _until_done(ending)
            if not ending.result():
                _log.warning("connector %d of cluster %s is still there after SIGKILL", process.pid, order.cluster)
            if cancelled is not None:
                raise cancelled

    async def _listen(self, process: asyncio.subprocess.Process, python: str, patience_s: float) -> Failure | None:
        """None: its output has ended and it did not say why."""
        assert process.stdout is not None  # nosec B101 # it was asked for
        until = time.monotonic() + patience_s
        wait_s = min(FIRST_WORD_S, patience_s)
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                return self._silent(python, wait_s, patience_s)
            if not line:
                return None
            self._spoke = True
            failure = self._hear(json.loads(line))
            if failure is not None:
                return failure
            wait_s = SILENCE_S if self.ready.is_set() else until - time.monotonic()

    def _silent(self, python: str, wait_s: float, patience_s: float) -> Failure:
        if not self._spoke:
            sentence = f"{python} said nothing for {wait_s:g} s after its start as a connector, and was killed"
            return Failure(o.BROKEN, sentence, IS_NO_CONNECTOR)
        if self.ready.is_set():
            return Failure(o.BROKEN, f"the connector was silent for {wait_s:g} s, and was killed")
        return Failure(o.UNREACHABLE, f"the connector took more than {patience_s:g} s to {self.phase}")

    def _hear(self, said: dict[str, Any]) -> Failure | None:
        match said["event"]:
            case o.PHASE:
                self.phase = str(said["phase"])
                self.may_exist = self.may_exist or bool(said.get("makes"))
            case o.READY:
                self.session = self.session or str(said["session"])
                self._ever_ready = True
                self.phase, self.may_exist = "carry", True
                self.ready.set()
            case o.GONE:
                self.gone = GatewayGone(str(said["session"]), str(said["why"]), bool(said["dead"]))
                return Failure(o.BROKEN, "the gateway is gone")
            case o.FAILED:
                return Failure(str(said["code"]), str(said["sentence"]))
            case o.ANSWER:
                asked = self._asked.get(said["id"])
                if asked is not None and not asked.done():
                    if said["problem"] is None:
                        asked.set_result(said["answer"])
                    else:
                        asked.set_exception(self._unanswered(str(said["problem"])))
        return None

    def _unanswered(self, why: str) -> ClusterConnectionError:
        cluster = self._order.cluster
        return ClusterConnectionError(f"cluster {cluster!r} could not be asked by Ray Client: {why}.", cluster=cluster)


async def _keep_tail(process: asyncio.subprocess.Process, tail: deque[str]) -> None:
    """Its standard error, of which the last lines are kept: a pipe that nobody reads would block it."""
    assert process.stderr is not None  # nosec B101 # it was asked for
    while chunk := await process.stderr.read(65536):
        tail.extend(line.strip()[:300] for line in chunk.decode(errors="replace").splitlines() if line.strip())


async def _start(command: Command) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command.argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(command.environment),
        start_new_session=True,
    )


async def _until_done(work: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Waits for it, also when we are cancelled meanwhile: half started or half ended, a process would be left behind.
    That we were is returned, and to be raised by whoever has put things in order."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return cancelled


async def _is_gone(process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> bool:
    """Wait for one that was killed. Its pipes are closed once their ends were read, or by us: who escaped its session
    may hold them for ever."""
    rest = asyncio.create_task(_to_the_end(process))
    try:
        return await _ended(process, reading, rest)
    finally:
        reading.cancel()
        rest.cancel()
        process._transport.close()  # type: ignore[attr-defined]  # asyncio has no other way to close what is left of it


async def _to_the_end(process: asyncio.subprocess.Process) -> None:
    """What is left of its output, which nobody wants."""
    assert process.stdout is not None  # nosec B101 # it was asked for
    while await process.stdout.read(65536):
        pass


async def _ended(process: asyncio.subprocess.Process, *pipes: asyncio.Task[None]) -> bool:
    """Waits for it and for the end of its pipes, but not for ever; True if they have ended."""
    waiting = asyncio.create_task(process.wait())
    try:
        _, left = await asyncio.wait([waiting, *pipes], timeout=_END_PATIENCE_S)
        return not left
    finally:
        waiting.cancel()


def _kill(process: asyncio.subprocess.Process) -> None:
    """With all that it started: its session is its own."""
    if process.returncode is not None:
        return  # by now somebody else may be called by its number
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _exit(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"status {code}"
