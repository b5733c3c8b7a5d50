"""Tiny tasks to the clusters of a service, by that service: its agents are the ones that matter. Each may wait and run
for a bounded time, and what is not over in the end is cancelled, so nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ray_multicluster_scheduler.app.client_api.cluster_rows import pause_words
from ray_multicluster_scheduler.cli.doctor import round_trip
from ray_multicluster_scheduler.cli.doctor.findings import Finding, Verdict, doubtful
from ray_multicluster_scheduler.cli.exit_codes import is_over
from ray_multicluster_scheduler.cli.service.client import Service, connect, path_of
from ray_multicluster_scheduler.cli.service.item_wait import LOOK_AGAIN_S, Deadline
from ray_multicluster_scheduler.common.exception import SchedulerError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.item_wait import Reason

_SUBMITTER = "submitter"
_ENDED = {"reason": "rmcs doctor has ended", "force": True}


def by_the_service(address: str, about: Mapping[str, Any], reason: Reason) -> Iterator[Finding]:
    """One for each of its clusters that takes tasks now; of the others it is said why none was sent. ``about`` is what
    it says of itself. Raises SchedulerError."""
    roles = [str(one) for one in about["you"]["roles"]]
    if _SUBMITTER not in roles:
        says = f"you may not submit ({', '.join(roles)}), so no task was sent to its clusters"
        yield doubtful("service", says, f"ask with a token that has the role {_SUBMITTER}", "NOT_ALLOWED")
        return
    service, names = connect(address), []
    for row in service.get(path_of("clusters"))["clusters"]:
        closed = _closed(service, row)
        if closed is None:
            names.append(str(row["name"]))
        else:
            yield closed
    yield from _there_and_back(service, names, reason)


def _closed(service: Service, row: Mapping[str, Any]) -> Finding | None:
    """Why it takes no tasks. One that nobody has asked lately may take some: a task lets it be asked."""
    name = str(row["name"])
    if row["cordoned"]:
        return _not_sent(name, "it is cordoned", f"`rmcs clusters uncordon {name}`", "CORDONED")
    if paused := pause_words(row):
        return _not_sent(name, paused, f"`rmcs queue resume --cluster {name}`", "QUEUE_PAUSED")
    if row["state"] == "UP" or row.get("stale"):
        return None
    troubles = service.get(path_of("clusters", name))["troubles"]
    trouble = next((one for one in troubles if one["concerns"] != "jobs"), None)
    if trouble is None:
        return None
    says, _, mend = str(trouble["sentence"]).partition(" What to do: ")
    return _not_sent(name, says, mend or round_trip.check_it(name), str(trouble["code"]))


def _not_sent(name: str, why: str, mend: str, code: str) -> Finding:
    return doubtful(name, f"no task was sent there: {why}", mend, code)


def _there_and_back(service: Service, names: Sequence[str], reason: Reason) -> list[Finding]:
    """All at once. What is not over is cancelled, also when somebody does not want to wait any longer."""
    found: dict[str, Finding] = {}
    sent: dict[str, str] = {}
    try:
        for name in names:
            sent[name] = f"doctor-{uuid4().hex[:12]}"  # made here: it is known also if the answer is lost
            try:
                service.post(path_of("items"), _tiny(sent[name], name))
            except SchedulerError as error:
                found[name] = round_trip.failed(name, error.message, error.next_step, error.code)
        found |= _awaited(service, {name: sent[name] for name in names if name not in found}, reason)
    finally:
        for name, item_id in sent.items():
            if name not in found or found[name].verdict is not Verdict.ok:
                with suppress(SchedulerError):  # it may never have been accepted
                    service.post(path_of("items", item_id, "cancel"), _ENDED)
    return [found[name] for name in names]


def _tiny(item_id: str, cluster: str) -> dict[str, Any]:
    """It needs no CPU of its own: whether a cluster is busy is not the question."""
    from ray_multicluster_scheduler.common import pickling
    from ray_multicluster_scheduler.common.blob_names import digest_of
    from ray_multicluster_scheduler.control_plane.runtime.wire import bytes_to_wire

    function, arguments = pickling.dumps(len), pickling.dumps(((round_trip.ARGUMENT,), {}))
    task = {
        "id": item_id,
        "kind": "task",
        "name": "doctor",
        "preferred_cluster": cluster,
        "fallback": "wait",
        "queue_timeout": round_trip.DEEP_S,
        "run_timeout": round_trip.DEEP_S,
        "function_digest": digest_of(function),
        "arguments_digest": digest_of(arguments),
    }
    return {"task": task, "blobs": bytes_to_wire({digest_of(one): one for one in (function, arguments)})}


def _awaited(service: Service, sent: Mapping[str, str], reason: Reason) -> dict[str, Finding]:
    """Until all are over, or the time is."""
    deadline, found = Deadline(2 * round_trip.DEEP_S), dict[str, Finding]()
    while True:
        items = {name: service.get(path_of("items", one)) for name, one in sent.items() if name not in found}
        late = deadline.over
        found |= {name: _judged(name, item) for name, item in items.items() if late or is_over(item["state"])}
        left = {name: item for name, item in items.items() if name not in found}
        if not left:
            return found
        reason.show(round_trip.on_the_way(left, str(next(iter(left.values())).get("sentence") or "")))
        time.sleep(LOOK_AGAIN_S)


def _judged(name: str, item: Mapping[str, Any]) -> Finding:
    """Of one that is over, or that nobody waits for any longer."""
    if item["state"] == "SUCCEEDED":
        return round_trip.went(name)
    end = (item.get("outcome") or {}).get("completion") or {}
    why = end.get("message") or f"it is {item['state']}: {item.get('sentence') or ''}"
    return round_trip.failed(name, str(why), end.get("next_step"), str(item.get("code") or item["state"]))
