"""An order that was sent and not answered may have been taken: that is said, and how to see it."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from ray_multicluster_scheduler.common.exception import SchedulerError

_SHOWN_BY = {
    "items": "rmcs task show {}",
    "clusters": "rmcs clusters show {}",
    "owners": "rmcs owner show {}",
    "tokens": "rmcs token list",
    "queue": "rmcs status",
    "log-level": "rmcs config log-level",
}
_LAST = "rmcs events"


def perhaps_done(error: SchedulerError, path: str) -> SchedulerError:
    """The same error, for whoever sent an order to this path."""
    return type(error)(
        f"{error.message} What was ordered may have been done all the same.",
        task_id=error.task_id,
        cluster=error.cluster,
        next_step=f"see what became of it before you order it again (`{_look(path)}`); else {error.next_step}",
    )


def _look(path: str) -> str:
    """The command that shows it."""
    what, *name = (unquote(word) for word in urlsplit(path).path.removeprefix("/api/v1/").split("/"))
    command = _SHOWN_BY.get(what, _LAST)
    if "{}" not in command:
        return command
    return command.format(name[0]) if len(name) > 1 or what == "owners" else _LAST
