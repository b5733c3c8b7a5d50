"""Sends a tiny task to each cluster and back, which needs everything on the way: from here, or through a service.

Each task has timeouts for its wait and its run, and what is not over in the end is cancelled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ray_multicluster_scheduler.app.client_api.cluster_rows import cordon_text, pause_text
from ray_multicluster_scheduler.cli.doctor.findings import Finding, Verdict, ok, problem, split_sentence, warning
from ray_multicluster_scheduler.cli.exit_codes import is_over
from ray_multicluster_scheduler.cli.layout.output import ProgressLine
from ray_multicluster_scheduler.cli.service.client import Service, api_path, connect
from ray_multicluster_scheduler.cli.service.item_wait import POLL_S, Deadline
from ray_multicluster_scheduler.common.exception import SchedulerError

if TYPE_CHECKING:
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
    from ray_multicluster_scheduler.control_plane.config import FleetConfig

TASK_TIMEOUT_S = 90.0
"""How long a task may wait, and how long it may run."""
_ARGUMENT = "there and back"
_SUBMITTER = "submitter"


def from_here(config: FleetConfig, progress: ProgressLine) -> Iterator[Finding]:
    """One finding for each cluster, by a scheduler in this process. Raises SchedulerError."""
    from ray_multicluster_scheduler import UnifiedScheduler

    settings = config.settings.model_copy(update={"agent_linger_s": 0})  # the agents are started, and end
    with UnifiedScheduler(config=config.model_copy(update={"settings": settings})) as scheduler:
        handles = {
            name: scheduler.submit_task_async(
                len, (_ARGUMENT,), preferred_cluster=name, fallback="wait", queue_timeout=TASK_TIMEOUT_S, name="doctor"
            )
            for name in config.names
        }
        _wait_for_handles(scheduler, handles, progress)
        found = [_finding_of_handle(name, handle) for name, handle in handles.items()]
        for handle in handles.values():
            if not handle.done():  # the shutdown would wait for it
                handle.cancel(force=True)
    yield from found


def _wait_for_handles(scheduler: UnifiedScheduler, handles: Mapping[str, TaskHandle], progress: ProgressLine) -> None:
    deadline, left = Deadline(2 * TASK_TIMEOUT_S), dict(handles)
    while left and not deadline.over:
        progress.show(_progress_text(left, str(next(iter(left.values())).explain().get("sentence") or "")))
        scheduler.wait(list(left.values()), timeout=POLL_S)
        left = {name: handle for name, handle in left.items() if not handle.done()}


def _finding_of_handle(name: str, handle: TaskHandle) -> Finding:
    try:
        handle.result(timeout=0)
    except SchedulerError as error:
        return _failed(name, error.message, error.next_step, str(handle.explain().get("code") or error.code))
    return _succeeded(name)


def through_service(address: str, about: Mapping[str, Any], progress: ProgressLine) -> Iterator[Finding]:
    """One finding for each cluster of a service; clusters that take no tasks now are skipped with a warning. ``about``
    is the service's description of itself. Raises SchedulerError."""
    roles = [str(one) for one in about["you"]["roles"]]
    if _SUBMITTER not in roles:
        says = f"you may not submit ({', '.join(roles)}), so no task was sent to its clusters"
        yield warning("service", says, f"use a token with the role {_SUBMITTER}", "NOT_ALLOWED")
        return
    service, names = connect(address), []
    for row in service.get(api_path("clusters"))["clusters"]:
        skipped = _skip_reason(service, row)
        if skipped is None:
            names.append(str(row["name"]))
        else:
            yield skipped
    yield from _send_tasks(service, names, progress)


def _skip_reason(service: Service, row: Mapping[str, Any]) -> Finding | None:
    """Why the cluster takes no tasks. None: it takes some, or its state is stale, and a task refreshes it."""
    name = str(row["name"])
    if row["cordoned"]:
        return _not_sent(name, cordon_text(row) or "it is cordoned", f"`rmcs clusters uncordon {name}`", "CORDONED")
    if paused := pause_text(row):
        return _not_sent(name, paused, f"`rmcs queue resume --cluster {name}`", "QUEUE_PAUSED")
    if row["state"] == "UP" or row.get("stale"):
        return None
    troubles = service.get(api_path("clusters", name))["troubles"]
    problem = next((one for one in troubles if one["concerns"] != "jobs"), None)
    if problem is None:
        return None
    says, fix = split_sentence(str(problem["sentence"]))
    return _not_sent(name, says, fix or _check_hint(name), str(problem["code"]))


def _send_tasks(service: Service, names: Sequence[str], progress: ProgressLine) -> list[Finding]:
    """Send all, then wait; cancels what is not over, also after Ctrl+C."""
    found: dict[str, Finding] = {}
    sent: dict[str, str] = {}
    try:
        for name in names:
            sent[name] = f"doctor-{uuid4().hex[:12]}"  # made here, so it is known even if the answer is lost
            try:
                service.post(api_path("items"), _tiny_task(sent[name], name))
            except SchedulerError as error:
                found[name] = _failed(name, error.message, error.next_step, error.code)
        found |= _wait_for_items(service, {name: sent[name] for name in names if name not in found}, progress)
    finally:
        for name, item_id in sent.items():
            if name not in found or found[name].verdict is not Verdict.ok:
                with suppress(SchedulerError):  # it may never have been accepted
                    body = {"reason": "rmcs doctor has ended", "force": True}
                    service.post(api_path("items", item_id, "cancel"), body)
    return [found[name] for name in names]


def _tiny_task(item_id: str, cluster: str) -> dict[str, Any]:
    """The request body; the task needs no CPU, so that it also runs on a busy cluster."""
    from ray_multicluster_scheduler.common import pickling
    from ray_multicluster_scheduler.common.blob_names import digest_of
    from ray_multicluster_scheduler.control_plane.runtime.wire import bytes_to_wire

    function, arguments = pickling.dumps(len), pickling.dumps(((_ARGUMENT,), {}))
    task = {
        "id": item_id,
        "kind": "task",
        "name": "doctor",
        "preferred_cluster": cluster,
        "fallback": "wait",
        "queue_timeout": TASK_TIMEOUT_S,
        "run_timeout": TASK_TIMEOUT_S,
        "function_digest": digest_of(function),
        "arguments_digest": digest_of(arguments),
    }
    return {"task": task, "blobs": bytes_to_wire({digest_of(one): one for one in (function, arguments)})}


def _wait_for_items(service: Service, sent: Mapping[str, str], progress: ProgressLine) -> dict[str, Finding]:
    deadline, found = Deadline(2 * TASK_TIMEOUT_S), dict[str, Finding]()
    while True:
        items = {name: service.get(api_path("items", one)) for name, one in sent.items() if name not in found}
        late = deadline.over
        found |= {name: _finding_of_item(name, item) for name, item in items.items() if late or is_over(item["state"])}
        left = {name: item for name, item in items.items() if name not in found}
        if not left:
            return found
        progress.show(_progress_text(left, str(next(iter(left.values())).get("sentence") or "")))
        time.sleep(POLL_S)


def _finding_of_item(name: str, item: Mapping[str, Any]) -> Finding:
    if item["state"] == "SUCCEEDED":
        return _succeeded(name)
    end = (item.get("outcome") or {}).get("completion") or {}
    why = end.get("message") or f"it is {item['state']}: {item.get('sentence') or ''}"
    return _failed(name, str(why), end.get("next_step"), str(item.get("code") or item["state"]))


def _progress_text(names: Iterable[str], why: str) -> str:
    first = why.partition("\n")[0]
    return f"a tiny task is on its way to {', '.join(names)} and back{f': {first}' if first else ''}"


def _succeeded(name: str) -> Finding:
    return ok(name, "a task ran there and returned")


def _failed(name: str, why: str, fix: str | None, code: str) -> Finding:
    return problem(name, f"a task could not run there and return: {why}", fix or _check_hint(name), code)


def _not_sent(name: str, why: str, fix: str, code: str) -> Finding:
    return warning(name, f"no task was sent there: {why}", fix, code)


def _check_hint(name: str) -> str:
    return f"`rmcs clusters check {name}` says whether it takes work"
