"""Queries the programs of this user that run a scheduler now, over their local sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import UnknownItemError

ANSWER_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


def query_all(query: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Process id and answer of each program, one after the other; an answer with ``error`` says why there is none."""
    from ray_multicluster_scheduler.control_plane.config.home import sockets

    for pid, path in sockets():
        answer = query_program(path, query)
        if answer is not None:
            yield pid, answer


def query_program(path: Path, query: Mapping[str, Any], timeout: float = ANSWER_S) -> dict[str, Any] | None:
    """One answer. None if no process listens there any more: then the socket is removed."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps(query).encode() + b"\n")
            with connection.makefile("rb") as reader:
                answer = json.loads(reader.readline(MAX_ANSWER_BYTES))
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            path.unlink()
        return None
    except (OSError, ValueError) as error:
        return {"error": type(error).__name__, "message": str(error) or "it does not answer"}
    return answer if isinstance(answer, dict) else {"error": "ValueError", "message": "its answer is not valid"}


def unknown_everywhere(item_id: str, asked: Sequence[str], service: str | None = None) -> UnknownItemError:
    """The error for an item that none of these programs has, nor the ``service`` at this address."""
    from ray_multicluster_scheduler.control_plane.config.home import run_folder

    if service is not None:
        others = f", and none of your programs has; programs queried: {', '.join(asked)}" if asked else ""
        message = f"The service {service} has no item {item_id!r}{others}."
        step = "see `rmcs task list` for its ids"
    elif asked:
        message = f"None of your programs has an item {item_id!r}; programs queried: {', '.join(asked)}."
        step = "see `rmcs explain --list` for their ids"
    else:
        message = f"No service runs here, and no program of yours with a scheduler (there is none in {run_folder()})."
        step = (
            "start the service that had it (`rmcs up`), or ask while the program that submitted it is running; "
            "with the same RMCS_HOME"
        )
    return UnknownItemError(message, task_id=item_id, next_step=step)
