"""Entry point of the connector process, which ``ConnectorProcess`` starts; see the package's docstring."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.connector.diagnosis import Problem, check_answer, check_port

_PR_SET_PDEATHSIG = 1


class EventWriter:
    """Writes events as lines of JSON to standard output; all other output of this process goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def emit(self, event: str, **more: Any) -> None:
        try:
            self._out.write(json.dumps({"event": event, **more}).encode() + b"\n")
        except OSError:
            os._exit(0)  # the control plane is gone


class CommandReader:
    """Reads commands on a thread, so that this process ends with the control plane even while Ray blocks."""

    def __init__(self) -> None:
        self.handle: Callable[[dict[str, Any]], object] = lambda _: None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self.handle(json.loads(line))
        os._exit(0)


def main() -> NoReturn:
    """Run the connector. Exits without an orderly shutdown of Ray, which could take half a minute."""
    _end_with_parent()
    events = EventWriter()
    config = protocol.ConnectorConfig.from_line(sys.stdin.buffer.readline())
    commands = CommandReader()
    try:
        events.emit(protocol.PHASE, phase=f"check whether {config.head} answers")
        check_port(config.head)
        if importlib.util.find_spec("ray") is None:
            raise Problem(protocol.NO_RAY, f"{sys.executable} has no ray")
        events.emit(protocol.PHASE, phase="import ray")
        try:
            check_answer(config.head, os.environ.get(protocol.TOKEN_VARIABLE))
            from ray_multicluster_scheduler.scheduler.connection.connector import session  # noqa: PLC0415 - imports ray
        except ImportError as error:
            sentence = f"{sys.executable} cannot import what Ray Client needs: {error}"
            raise Problem(protocol.NO_RAY, sentence) from error
        events.emit(protocol.PHASE, phase=f"connect to {config.head}")
        session.connect(config)
        phase = "start the gateway" if config.join else "find the gateway"
        events.emit(protocol.PHASE, phase=phase, makes=bool(config.join))

        async def serve() -> None:
            one = session.ConnectorSession(config, events.emit)
            commands.handle = one.handle_command
            await one.run()

        asyncio.run(serve())
    except Problem as problem:
        events.emit(protocol.FAILED, code=problem.code, sentence=problem.sentence)
        os._exit(1)
    os._exit(0)


def _end_with_parent() -> None:
    """Be killed with the parent, on Linux. Its end also closes our standard input, but a stopped process does not read
    that before it is continued."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
