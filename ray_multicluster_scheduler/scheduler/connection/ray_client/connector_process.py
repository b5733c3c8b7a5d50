"""ConnectorProcess: supervises the connector of one agent: starts it, watches it, kills it if it hangs, replaces it."""

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
from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import IS_NO_CONNECTOR, LinkProblem

_log = get_logger(__name__)
CREATE_TIMEOUT_S, FIND_TIMEOUT_S = 60.0, 30.0
"""The first connector also ships our package and creates the actor."""
SILENCE_TIMEOUT_S = 5.0
FIRST_OUTPUT_TIMEOUT_S = 10.0
"""From its start to its first line, which a program that is not Python may never print."""
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_STABLE_AFTER_S = 30.0
_TAIL_LINES = 5
_KILL_TIMEOUT_S = 3.0
_EXIT_TIMEOUT_S = 5.0
"""For a process that closed its output or was killed: its children may keep its pipes open."""
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ConnectorFailure:
    """The reason why a connector ended. ``code`` is a code of LinkProblem."""

    code: str
    sentence: str
    next_step: str = ""
    """Replaces the usual next step of its code."""


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """The cluster answers, in Ray session ``session``, and has no such gateway. ``dead``: its process has certainly
    ended; otherwise its node may only be disconnected, and its calls may run until its lease ends."""

    session: str
    why: str
    dead: bool


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts a connector."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    head: str | None = None
    """The current address of the cluster; None: that of the order."""


class ConnectorProcess:
    """Keeps a connector running for one agent until :meth:`stop`, or until the gateway is known to be gone.

    The first connector may create the gateway (``create_order``), later ones only find it (``find_order``).
    ``command`` is called before each start, as the configuration may have changed.
    """

    def __init__(
        self,
        create_order: protocol.ConnectorConfig,
        find_order: protocol.ConnectorConfig,
        command: Callable[[], Command],
        *,
        session: str = "",
    ) -> None:
        self._order, self._find_order, self._command = create_order, find_order, command
        self.session = session
        """The Ray session of the cluster, as the gateway reported it; "" if it never did."""
        self.gone: GatewayGone | None = None
        self.failure: ConnectorFailure | None = None
        """Of the last connector that ended."""
        self.phase = "start"
        """The current step of the connector, as a verb: "connect to …"."""
        self.may_exist = create_order.join is None
        """Whether there may be a gateway: of the previous process, or one that is being created."""
        self.ready = asyncio.Event()
        self.pid: int | None = None
        self._ever_ready = False
        self._process: asyncio.subprocess.Process | None = None
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._had_output = False
        self._supervision = asyncio.create_task(self._supervise())

    async def wait_ended(self) -> ConnectorFailure:
        """Wait until the first connector ended before it was ready, or the gateway is gone."""
        await asyncio.shield(self._supervision)
        if self.gone is not None:
            return ConnectorFailure(protocol.BROKEN, f"the gateway ended at once: {self.gone.why}")
        return self.failure or ConnectorFailure(protocol.BROKEN, "the connector ended")

    async def kill_gateway(self) -> bool:
        """Kill the gateway. False if the connector does not reach it."""
        if not self.ready.is_set():
            return False
        try:
            await self.ask(protocol.KILL, timeout_s=_KILL_TIMEOUT_S)
        except ClusterConnectionError:
            return False
        return True

    async def ask(self, order: str, timeout_s: float = ANSWER_TIMEOUT_S, **more: Any) -> Any:
        """Send a request and wait for the answer. Raises ClusterConnectionError if the connector ends first, or on a
        timeout, which is possible although the connector sends heartbeats."""
        cluster, process = self._order.cluster, self._process
        if not self.ready.is_set() or process is None or process.stdin is None:
            raise ClusterConnectionError(f"cluster {cluster!r} has no connector process now.", cluster=cluster)
        number = next(self._numbers)
        self._requests[number] = answer = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(json.dumps({"order": order, "id": number, **more}).encode() + b"\n")
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise self._unanswered(f"no answer within {timeout_s:g} s") from None
        finally:
            self._requests.pop(number, None)

    async def stop(self) -> None:
        """End the connector. The gateway lives until its lease ends."""
        self._supervision.cancel()
        await asyncio.gather(self._supervision, return_exceptions=True)

    async def _supervise(self) -> None:
        tries = 0
        while self.gone is None:
            began = time.monotonic()
            try:
                self.failure = await self._run_one(self._find_order if self._ever_ready else self._order)
            except Exception as error:  # noqa: BLE001 - without supervision its cluster stays lost
                _log.exception("unexpected error of the connector of cluster %s", self._order.cluster)
                self.failure = ConnectorFailure(
                    protocol.BROKEN, f"the connector failed: {type(error).__name__}: {error}"
                )
            if not self._ever_ready and self._order.join is not None:
                return  # it may have created the gateway; the caller decides what to do
            if self.gone is not None:
                agent, cluster = self._order.agent, self._order.cluster
                _log.warning("the gateway %s of cluster %s is gone: %s", agent, cluster, self.gone.why)
                return
            _log.warning("the connector of cluster %s is replaced: %s", self._order.cluster, self.failure.sentence)
            tries = 0 if time.monotonic() - began > _STABLE_AFTER_S else tries + 1
            await asyncio.sleep(_BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)])

    async def _run_one(self, order: protocol.ConnectorConfig) -> ConnectorFailure:
        """Run one connector until it ends or is killed."""
        self.phase, self._had_output = "start", False
        try:
            command = self._command()
        except ConfigurationError as error:
            return ConnectorFailure(protocol.TOKEN_REFUSED, error.message.rstrip("."))
        except LinkProblem as problem:
            return ConnectorFailure(problem.code, problem.message.rstrip("."))
        if command.head is not None:
            order = replace(order, head=command.head)
        starting = asyncio.ensure_future(_start(command))
        cancelled = await _until_done(starting)
        try:
            process = starting.result()
        except OSError as error:
            if cancelled is not None:
                raise cancelled from error
            return ConnectorFailure(protocol.BROKEN, f"{command.argv[0]} cannot be started: {error.strerror or error}")
        assert process.stdin is not None  # nosec B101 # it is a pipe
        self._process, self.pid = process, process.pid
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        reading = asyncio.create_task(_keep_tail(process, tail))
        try:
            if cancelled is not None:
                raise cancelled
            process.stdin.write(order.line())
            failure = await self._read_events(
                process, command.argv[0], FIND_TIMEOUT_S if order.join is None else CREATE_TIMEOUT_S
            )
            if failure is None:
                await _ended(process, reading)
                code = process.returncode or 0
                status = f"by signal {-code}" if code < 0 else f"status {code}"
                ended = "closed its output and did not end" if process.returncode is None else f"ended ({status})"
                output = " | ".join(tail) or "no error output"
                failure = ConnectorFailure(
                    protocol.BROKEN,
                    f"the connector {ended} while it was to {self.phase}: {output}",
                    "" if self._had_output else IS_NO_CONNECTOR,
                )
            return failure
        finally:
            self.ready.clear()
            for request in self._requests.values():
                if not request.done():
                    request.set_exception(self._unanswered("the connector ended"))
            self._process = self.pid = None
            _kill(process)
            process.stdin.close()
            ending = asyncio.ensure_future(_is_gone(process, reading))
            cancelled = await _until_done(ending)
            if not ending.result():
                _log.warning("connector %d of cluster %s is still running after SIGKILL", process.pid, order.cluster)
            if cancelled is not None:
                raise cancelled

    async def _read_events(
        self, process: asyncio.subprocess.Process, python: str, timeout_s: float
    ) -> ConnectorFailure | None:
        """Handle its output. None: it ended without a reason."""
        assert process.stdout is not None  # nosec B101 # it is a pipe
        deadline = time.monotonic() + timeout_s
        wait_s = min(FIRST_OUTPUT_TIMEOUT_S, timeout_s)
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                return self._timed_out(python, wait_s, timeout_s)
            if not line:
                return None
            self._had_output = True
            failure = self._handle(json.loads(line))
            if failure is not None:
                return failure
            wait_s = SILENCE_TIMEOUT_S if self.ready.is_set() else deadline - time.monotonic()

    def _timed_out(self, python: str, wait_s: float, timeout_s: float) -> ConnectorFailure:
        if not self._had_output:
            sentence = f"{python} printed nothing for {wait_s:g} s after its start as a connector, and was killed"
            return ConnectorFailure(protocol.BROKEN, sentence, IS_NO_CONNECTOR)
        if self.ready.is_set():
            return ConnectorFailure(protocol.BROKEN, f"the connector was silent for {wait_s:g} s, and was killed")
        return ConnectorFailure(protocol.UNREACHABLE, f"the connector took more than {timeout_s:g} s to {self.phase}")

    def _handle(self, event: dict[str, Any]) -> ConnectorFailure | None:
        match event["event"]:
            case protocol.PHASE:
                self.phase = str(event["phase"])
                self.may_exist = self.may_exist or bool(event.get("makes"))
            case protocol.READY:
                self.session = self.session or str(event["session"])
                self._ever_ready = True
                self.phase, self.may_exist = "carry", True
                self.ready.set()
            case protocol.GONE:
                why = str(event["why"]) or "Ray gives no reason"
                self.gone = GatewayGone(str(event["session"]), why, bool(event["dead"]))
                return ConnectorFailure(protocol.BROKEN, "the gateway is gone")
            case protocol.FAILED:
                return ConnectorFailure(str(event["code"]), str(event["sentence"]))
            case protocol.ANSWER:
                request = self._requests.get(event["id"])
                if request is not None and not request.done():
                    if event["problem"] is None:
                        request.set_result(event["answer"])
                    else:
                        request.set_exception(self._unanswered(str(event["problem"])))
        return None

    def _unanswered(self, why: str) -> ClusterConnectionError:
        cluster = self._order.cluster
        return ClusterConnectionError(f"a request to cluster {cluster!r} by Ray Client failed: {why}.", cluster=cluster)


async def _keep_tail(process: asyncio.subprocess.Process, tail: deque[str]) -> None:
    """Read its standard error, which would block it otherwise, and keep the last lines."""
    assert process.stderr is not None  # nosec B101 # it is a pipe
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
    """Wait for it even if this task is cancelled, so that no half-started process is left behind. Returns the
    cancellation, which the caller must raise after its clean-up."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return cancelled


async def _is_gone(process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> bool:
    """Wait for a killed process. Close its pipes once they are read to the end, or after a timeout: a child outside of
    its session may keep them open."""
    rest = asyncio.create_task(_drain_output(process))
    try:
        return await _ended(process, reading, rest)
    finally:
        reading.cancel()
        rest.cancel()
        process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public way to close the pipes


async def _drain_output(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None  # nosec B101 # it is a pipe
    while await process.stdout.read(65536):
        pass


async def _ended(process: asyncio.subprocess.Process, *pipes: asyncio.Task[None]) -> bool:
    """Wait for the process and its pipes, with a timeout; True if they have ended."""
    waiting = asyncio.create_task(process.wait())
    try:
        _, left = await asyncio.wait([waiting, *pipes], timeout=_EXIT_TIMEOUT_S)
        return not left
    finally:
        waiting.cancel()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process with its children, which share its session."""
    if process.returncode is not None:
        return  # another process may have its pid by now
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
