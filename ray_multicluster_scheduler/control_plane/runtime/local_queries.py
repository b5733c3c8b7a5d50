"""LocalQueryServer: answers `rmcs explain`, `rmcs drain` and similar commands for a running program on a Unix socket.

A question and its answer are one line of JSON each. :func:`answer` has the questions; Runtime owns the server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config.home import SUFFIX, make_run_folder, sockets
from ray_multicluster_scheduler.control_plane.runtime import explanation, fleet_control
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_reason
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

_log = get_logger(__name__)
MAX_LISTED = 1000
MAX_QUESTION_BYTES = 64 * 1024
TIMEOUT_S = 5.0
MAX_CONNECTIONS = 16
_MAX_COMMAND = 200
_numbers = itertools.count(1)
_logged_problems: set[str] = set()

Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


async def answer(runtime: Runtime, question: Mapping[str, Any]) -> dict[str, Any]:
    """On the loop. Raises UnknownItemError, ConfigurationError."""
    match question:
        case {"explain": str(item_id)}:
            call = runtime.method_calls.find(item_id)
            if call is not None:
                answer = explanation.call_explanation(call)
            elif runtime.method_calls.was_issued(item_id):
                answer = explanation.answered_call(item_id)
            else:
                answer = explanation.item_explanation(runtime, item_id)
            return {"program": _program(runtime), "explain": answer}
        case {"list": True}:
            records = list(runtime.machine.records())
            rows = [_row(record) for record in reversed(records[-MAX_LISTED:])]
            return {"program": _program(runtime), "items": rows, "more": len(records) - len(rows)}
        case {"declare_dead": str(cluster)}:
            reason, force = checked_reason(question.get("reason", "")), question.get("force") is True
            items = await fleet_control.declare_dead(runtime, cluster, reason, force=force)
            return {"program": _program(runtime), "cluster": cluster, "items": items}
        case {"drain": str(cluster)}:
            return _cordoned(runtime, cluster, cordoned=True, reason=checked_reason(question.get("reason", "")))
        case {"uncordon": str(cluster)}:
            return _cordoned(runtime, cluster, cordoned=False)
    raise ConfigurationError(
        f"Unknown question: {dict(question)!r}.",
        next_step='send {"explain": "<id>"}, {"list": true} or {"drain": "<cluster>"}',
    )


def _cordoned(runtime: Runtime, cluster: str, *, cordoned: bool, reason: str = "") -> dict[str, Any]:
    items, changed = fleet_control.cordon(runtime, cluster, cordoned=cordoned, reason=reason)
    return {"program": _program(runtime), "cluster": cluster, "items": items, "changed": changed}


def _program(runtime: Runtime) -> dict[str, Any]:
    command = " ".join(sys.orig_argv)[:_MAX_COMMAND]
    return {"pid": os.getpid(), "command": command, "control_plane": runtime.control_plane}


def _row(record: TaskRecord) -> dict[str, Any]:
    return {
        "id": record.task.id,
        "kind": record.task.kind,
        "name": record.task.name,
        "actor_name": None if record.task.actor is None else record.task.actor.public_name,
        "owner": record.task.owner,
        "state": str(record.state),
        "cluster": record.cluster,
        "code": record.code,
    }


class LocalQueryServer:
    """Runs on the control plane's loop. A SchedulerError of ``answer`` is sent as the answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._pid = os.getpid()
        self._connections: set[asyncio.Task[None]] = set()
        self.path: Path | None = None

    async def open(self) -> None:
        """Start listening. A problem is logged once, and there is no socket then."""
        try:
            folder = make_run_folder()
            for _ in sockets():
                pass  # listing removes the sockets of dead processes
            path = folder / f"{self._pid}-{next(_numbers)}{SUFFIX}"
            path.unlink(missing_ok=True)  # left by an earlier process with our pid
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(str(path))
                path.chmod(0o600)
                self._server = await asyncio.start_unix_server(self._connected, sock=listener, limit=MAX_QUESTION_BYTES)
            except BaseException:
                listener.close()
                raise
            self.path = path
        except (OSError, RuntimeError) as error:  # RuntimeError: the home directory is unknown
            reason = f"{type(error).__name__}: {error}"
            if reason not in _logged_problems:
                _logged_problems.add(reason)
                _log.warning(
                    "`rmcs explain` will not find this program, because its socket could not be created: %s", reason
                )

    async def close(self) -> None:
        """Stop listening and close open connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self.path is not None and os.getpid() == self._pid:  # not in the child of a fork
            with suppress(OSError):
                self.path.unlink()
        self.path = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            if task is not None and len(self._connections) < MAX_CONNECTIONS:
                self._connections.add(task)
                async with asyncio.timeout(TIMEOUT_S):
                    line = json.dumps(await self._reply(await reader.readline()), default=str)
                    writer.write(line.encode() + b"\n")
                    await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.CancelledError) as error:
            _log.debug("a question was not answered: %r", error)  # too long, timed out, or its client has left
        finally:
            if task is not None:
                self._connections.discard(task)
            writer.close()

    async def _reply(self, line: bytes) -> Mapping[str, Any]:
        try:
            question = json.loads(line)
            if not isinstance(question, dict):
                raise TypeError
        except (ValueError, TypeError):
            return {"error": "ConfigurationError", "message": "A question is one line with a JSON object."}
        try:
            return await self._answer(question)
        except SchedulerError as error:
            return {"error": type(error).__name__, "message": error.message, "next_step": error.next_step}
