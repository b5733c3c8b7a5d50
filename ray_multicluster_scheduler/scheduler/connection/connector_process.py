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
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.connector import order as o

_log = get_logger(__name__)
CONNECT_PATIENCE_S, FIND_PATIENCE_S = 60.0, 30.0
"""The first one ships our package and starts an actor, too."""
SILENCE_S = 5.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_STEADY_S = 30.0
_TAIL_LINES = 5
_KILL_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a connector ended. ``code`` is that of a LinkProblem."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """The cluster answers, as ``session``, and there is no such gateway in it."""

    session: str
    why: str


@dataclass(frozen=True, slots=True)
class Command:
    """How a connector is started."""

    argv: Sequence[str]
    environment: Mapping[str, str]


class ConnectorProcess:
    """Keeps a connector alive for one agent, until :meth:`stop`, or until the gateway is known to be gone.

    The first one may make the gateway; those after it only find it. ``command`` is asked before each start: a token may
    have changed.
    """

    def __init__(self, order: o.Order, find: o.Order, command: Callable[[], Command], *, session: str = "") -> None:
        self._order, self._find, self._command = order, find, command
        self.session = session
        """Of the cluster, as the gateway told it; "" if it never did."""
        self.gone: GatewayGone | None = None
        self.failure: Failure | None = None
        """Of the last one that ended."""
        self.ready = asyncio.Event()
        self.pid: int | None = None
        self._ever_ready = False
        self._process: asyncio.subprocess.Process | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._phase = "start"
        self._keeping = asyncio.create_task(self._keep())

    async def wait_ended(self) -> Failure:
        """Until the first one has ended before it was ready, or nothing is left to be watched."""
        await asyncio.shield(self._keeping)
        if self.gone is not None:
            return Failure(o.BROKEN, f"the gateway ended at once: {self.gone.why or 'Ray does not say why'}")
        return self.failure or Failure(o.BROKEN, "the connector ended")

    async def kill_gateway(self) -> bool:
        """End the gateway, if the connector reaches it. True: it did."""
        if not self.ready.is_set():
            return False
        try:
            async with asyncio.timeout(_KILL_PATIENCE_S):
                await self.ask(o.KILL)
        except (ClusterConnectionError, TimeoutError):
            return False
        return True

    async def ask(self, order: str, **more: Any) -> Any:
        """Give an order and wait for its answer. Raises ClusterConnectionError, also when the connector ends first."""
        cluster, process = self._order.cluster, self._process
        if not self.ready.is_set() or process is None or process.stdin is None:
            raise ClusterConnectionError(f"there is no connector to cluster {cluster!r} just now.", cluster=cluster)
        number = next(self._numbers)
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(json.dumps({"order": order, "id": number, **more}).encode() + b"\n")
            return await answer
        finally:
            self._asked.pop(number, None)

    async def stop(self) -> None:
        """No connector is left afterwards. The gateway goes on until its lease ends."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)

    async def _keep(self) -> None:
        tries = 0
        while self.gone is None:
            began = time.monotonic()
            self.failure = await self._one(self._find if self._ever_ready else self._order)
            if not self._ever_ready and self._order.join is not None:
                return  # it may or may not have made the gateway: whoever started it decides
            if self.gone is not None:
                return
            _log.warning("the connector of cluster %s is replaced: %s", self._order.cluster, self.failure.sentence)
            tries = 0 if time.monotonic() - began > _STEADY_S else tries + 1
            await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])

    async def _one(self, order: o.Order) -> Failure:
        """From its start to its end, by itself or by us."""
        self._phase = "start"
        try:
            command = self._command()
        except ConfigurationError as error:
            return Failure(o.TOKEN_REFUSED, error.message.rstrip("."))
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(command.environment),
                start_new_session=True,
            )
        except OSError as error:
            return Failure(o.BROKEN, f"{command.argv[0]} cannot be started: {error.strerror or error}")
        self._process, self.pid = process, process.pid
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        reading = asyncio.create_task(_keep_tail(process, tail))
        try:
            assert process.stdin is not None  # nosec B101 # it was asked for above
            process.stdin.write(order.line())
            failure = await self._listen(process, FIND_PATIENCE_S if order.join is None else CONNECT_PATIENCE_S)
            if failure is None:
                code = await process.wait()
                await reading
                said = " | ".join(tail) or "it said nothing"
                failure = Failure(
                    o.BROKEN, f"the connector ended ({_exit(code)}) while it was to {self._phase}: {said}"
                )
            return failure
        finally:
            self.ready.clear()
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(self._unanswered("the connector ended"))
            self._process = self.pid = None
            _kill(process)
            reading.cancel()
            await asyncio.gather(process.wait(), reading, return_exceptions=True)

    async def _listen(self, process: asyncio.subprocess.Process, patience_s: float) -> Failure | None:
        """None: its output has ended and it did not say why."""
        assert process.stdout is not None  # nosec B101 # it was asked for
        until = time.monotonic() + patience_s
        while True:
            try:
                async with asyncio.timeout(SILENCE_S if self.ready.is_set() else until - time.monotonic()):
                    line = await process.stdout.readline()
            except TimeoutError:
                if self.ready.is_set():
                    return Failure(o.BROKEN, f"the connector was silent for {SILENCE_S:g} s, and was killed")
                return Failure(o.UNREACHABLE, f"the connector took more than {patience_s:g} s to {self._phase}")
            if not line:
                return None
            failure = self._hear(json.loads(line))
            if failure is not None:
                return failure

    def _hear(self, said: dict[str, Any]) -> Failure | None:
        match said["event"]:
            case o.PHASE:
                self._phase = str(said["phase"])
            case o.READY:
                self.session = self.session or str(said["session"])
                self._ever_ready = True
                self._phase = "carry"
                self.ready.set()
            case o.GONE:
                self.gone = GatewayGone(str(said["session"]), str(said["why"]))
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


def _kill(process: asyncio.subprocess.Process) -> None:
    """With all that it started: its session is its own."""
    if process.returncode is not None:
        return  # by now somebody else may be called by its number
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _exit(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"status {code}"
