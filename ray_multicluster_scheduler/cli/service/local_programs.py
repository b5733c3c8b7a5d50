"""The programs of this user that have a scheduler now, asked over their sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.exception import UnknownItemError

PATIENCE_S = 5.0
LONGEST_ANSWER = 64 * 1024 * 1024


def ask_all(question: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Process id and answer of each program, one after the other; an answer with ``error`` says why there is none."""
    from ray_multicluster_scheduler.control_plane.config.run_folder import sockets

    for pid, path in sockets():
        answer = ask(path, question)
        if answer is not None:
            yield pid, answer


def ask(path: Path, question: Mapping[str, Any], patience: float = PATIENCE_S) -> dict[str, Any] | None:
    """One question, one answer. None if nobody listens there any more: then the socket is removed."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(patience)
            line.connect(str(path))
            line.sendall(json.dumps(question).encode() + b"\n")
            with line.makefile("rb") as reader:
                answer = json.loads(reader.readline(LONGEST_ANSWER))
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            path.unlink()
        return None
    except (OSError, ValueError) as error:
        return {"error": type(error).__name__, "message": str(error) or "it does not answer"}
    return answer if isinstance(answer, dict) else {"error": "ValueError", "message": "its answer makes no sense"}


def nobody_knows(item_id: str, asked: Sequence[str], service: str | None = None) -> UnknownItemError:
    """None of these has such an item, nor has the ``service`` at this address."""
    from ray_multicluster_scheduler.common.exception import UnknownItemError
    from ray_multicluster_scheduler.control_plane.config.run_folder import run_folder

    if service is not None:
        others = f", and none of your programs has; asked were: {', '.join(asked)}" if asked else ""
        message = f"The service {service} has no item {item_id!r}{others}."
        step = "look at `rmcs task list` for the ids that there are"
    elif asked:
        message = f"None of your programs has an item {item_id!r}; asked were: {', '.join(asked)}."
        step = "look at `rmcs explain --list` for the ids that there are"
    else:
        message = f"No service runs here, and no program of yours with a scheduler (there is none in {run_folder()})."
        step = (
            "start the service that had it (`rmcs up`), or ask while the program that submitted it is running; "
            "with the same RMCS_HOME"
        )
    return UnknownItemError(message, task_id=item_id, next_step=step)
