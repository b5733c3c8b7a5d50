"""The retry policy: whether a failed attempt is tried again, and when.

Each class of failure has its own budget: exceptions of user code ``retries``, a dead worker or node
``crash_retries``, a lost cluster ``lost_retries``. What cannot succeed is never tried again.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping

from ray_multicluster_scheduler.common.model import ActorDescription, FailureClass, TaskDescription, allows_retry
from ray_multicluster_scheduler.control_plane.config.settings import RetryBackoff

AGAIN = "; tried again in "
_CRC_RANGE = 0xFFFFFFFF


def budget(task: TaskDescription, failure: FailureClass, *, ran: bool) -> int:
    """The number of failures of this class that an item survives. ``ran``: the attempt may have started.

    A Ray job has no lease, so one that was lost while it ran is retried only with ``retry_lost``.
    """
    if failure is FailureClass.CLUSTER and ran and task.kind == "job" and not task.retry_lost:
        return 0
    return {
        FailureClass.USER: task.retries,
        FailureClass.CRASH: task.crash_retries,
        FailureClass.CLUSTER: task.lost_retries,
        FailureClass.PERMANENT: 0,
    }[failure]


def restarts(actor: ActorDescription) -> int:
    """The number of restarts of an actor that was ready; before that it is retried like a task.

    A detached actor may live on unobserved: only Ray itself restarts it.
    """
    if actor.detached:
        return 0
    return actor.max_restarts if actor.max_restarts >= 0 else sys.maxsize


def wants_retry(
    task: TaskDescription,
    failure: FailureClass,
    error_type: str | None,
    failures: Mapping[FailureClass, int],
    *,
    ran: bool,
) -> bool:
    """Should it be retried? ``failures`` counts all failures by class, including this one.

    ``retry_on`` and ``no_retry_on`` name exception classes of user code; they do not apply to crashes.
    """
    if failures.get(failure, 0) > budget(task, failure, ran=ran):
        return False
    return failure is not FailureClass.USER or allows_retry(error_type, task.retry_on, task.no_retry_on)


def pause(delay: float, grace_s: float) -> tuple[float, str]:
    """Seconds before the next attempt, and the same as text: the back-off, or ``grace_s`` if that is longer."""
    if grace_s <= delay:
        return delay, f"{delay:.1f} s"
    return grace_s, f"{grace_s:.1f} s (node_grace_s), when no node of the old session can still run it"


def as_of_now(sentence: str, left: float) -> str:
    """The sentence of a failed attempt, with the remaining seconds of the back-off instead of all of them."""
    why, again, when = sentence.rpartition(AGAIN)
    _, unit, rest = when.partition(" s")
    return f"{why}{again}{left:.1f}{unit}{rest}" if again and unit else sentence


def backoff_s(settings: RetryBackoff, task_id: str, attempt: int, failures: int) -> float:
    """Seconds before the next attempt: exponential in ``failures`` (1, 2, …), capped, then give or take the jitter.

    The jitter is a hash of id and attempt: it spreads items, and a replay gives the same times.
    """
    plain = settings.base_s
    for _ in range(failures - 1):
        if plain >= settings.max_s:
            break
        plain *= settings.factor
    plain = min(plain, settings.max_s)
    spread = zlib.crc32(f"{task_id}:{attempt}".encode()) / _CRC_RANGE * 2 - 1
    return plain * (1 + settings.jitter * spread)
