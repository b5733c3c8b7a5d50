"""What is said of a job: how it stands, how it ended, and why one never ran."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

_LAST_LINES = 20
_LOGS_FOLLOW = re.compile(r",? *last available logs(?: \([^()]*\))?: *$")
"""How Ray announces what a job printed; where that is not shown, it is announced in vain."""
_ENDED = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "was stopped"}


def never_ran(info: Mapping[str, Any]) -> bool:
    """It failed before any cluster had it: it has printed nothing."""
    return info["status"] == "FAILED" and info.get("attempt") == 0


def end_words(info: Mapping[str, Any]) -> str:
    """In one line; of one that never ran all that each cluster said."""
    job_id, message = info["job_id"], str(info["message"]).rstrip()
    if never_ran(info):
        return f"{job_id} failed: {message}"
    first = _LOGS_FOLLOW.sub("", message.partition("\n")[0])
    return f"{job_id} {_ENDED.get(info['status'], _not_over(info))}{f': {first}' if first else ''}"


def standing_words(job_id: str, info: Mapping[str, Any], printed: Callable[[], str]) -> str:
    """How it stands, in Ray's words; of one that failed also the end of what it ``printed``, which is asked for only
    where the message does not have it. One that never ran has printed nothing: then all of the message is shown."""
    message, _, more = str(info["message"]).rstrip().partition("\n")
    lines = [f"Status for job '{job_id}': {info['status']}"]
    below = ""
    if info["status"] == "FAILED":
        below = (more if more.strip() or never_ran(info) else printed()).rstrip()
    if message:
        lines.append(f"Status message: {message if below else _LOGS_FOLLOW.sub('', message)}")
    shown = below.split("\n") if below else []
    return "\n".join([*lines, *(shown if never_ran(info) else shown[-_LAST_LINES:])])


def changed_paths(service: Service, info: Mapping[str, Any]) -> str:
    """Which paths of its entrypoint were other ones on its cluster, whose home directory is another; "" if none was,
    or nobody knows any more."""
    from ray_multicluster_scheduler.cli.service.client import path_of
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        pairs = service.get(path_of("items", info["job_id"], "explain")).get("converted_paths") or ()
    except SchedulerError:  # a hint that cannot be had changes nothing of how the job ended
        return ""
    became = ", ".join(f"{before} became {after}" for before, after in pairs)
    return f"for the home directory of {info['cluster']}, {became}" if became else ""


def why_it_never_ran(service: Service, job_id: str) -> str:
    """What its owner can do, and where to read on."""
    from ray_multicluster_scheduler.cli.service.items import told_of
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        done = (told_of(service, job_id).get("outcome") or {}).get("completion") or {}
    except SchedulerError:  # a hint that cannot be had changes nothing of how the job ended
        done = {}
    mend = f"what to do: {done['next_step']}; " if done.get("next_step") else ""
    return f"{mend}nothing of it has run, more: `rmcs explain {job_id}`"


def _not_over(info: Mapping[str, Any]) -> str:
    return f"is {info['status']}, and not over"
