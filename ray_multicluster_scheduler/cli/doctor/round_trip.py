"""A tiny task that goes to a cluster and back shows all that lies between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.cli.doctor.findings import Finding, well, wrong
from ray_multicluster_scheduler.cli.service.item_wait import LOOK_AGAIN_S, Deadline
from ray_multicluster_scheduler.common.exception import SchedulerError

if TYPE_CHECKING:
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
    from ray_multicluster_scheduler.cli.service.item_wait import Reason
    from ray_multicluster_scheduler.control_plane.config import FleetConfig

DEEP_S = 90.0
"""So long a task may wait, and so long it may run then."""
ARGUMENT = "there and back"


def from_here(config: FleetConfig, reason: Reason) -> Iterator[Finding]:
    """One for each cluster of a configuration, by a control plane of our own, whose end is the end of all of them.
    Raises SchedulerError."""
    from ray_multicluster_scheduler import UnifiedScheduler

    with UnifiedScheduler(config=config) as scheduler:
        handles = {
            name: scheduler.submit_task_async(
                len, (ARGUMENT,), preferred_cluster=name, fallback="wait", queue_timeout=DEEP_S, name="doctor"
            )
            for name in config.names
        }
        _await(scheduler, handles, reason)
        found = [_judged(name, handle) for name, handle in handles.items()]
        for handle in handles.values():
            if not handle.done():  # its end would be waited for
                handle.cancel(force=True)
    yield from found


def _await(scheduler: UnifiedScheduler, handles: Mapping[str, TaskHandle], reason: Reason) -> None:
    """Until all are over, or the time is."""
    deadline, left = Deadline(2 * DEEP_S), dict(handles)
    while left and not deadline.over:
        reason.show(on_the_way(left, str(next(iter(left.values())).explain().get("sentence") or "")))
        scheduler.wait(list(left.values()), timeout=LOOK_AGAIN_S)
        left = {name: handle for name, handle in left.items() if not handle.done()}


def _judged(name: str, handle: TaskHandle) -> Finding:
    try:
        handle.result(timeout=0)
    except SchedulerError as error:
        return failed(name, error.message, error.next_step, str(handle.explain().get("code") or error.code))
    return went(name)


def on_the_way(names: Iterable[str], why: str) -> str:
    """In one line: which clusters are waited for, and why."""
    first = why.partition("\n")[0]
    return f"a tiny task is on its way to {', '.join(names)} and back{f': {first}' if first else ''}"


def went(name: str) -> Finding:
    return well(name, "a task went there and back")


def failed(name: str, why: str, mend: str | None, code: str) -> Finding:
    return wrong(name, f"a task could not go there and back: {why}", mend or check_it(name), code)


def check_it(name: str) -> str:
    return f"`rmcs clusters check {name}` says whether it takes work"
