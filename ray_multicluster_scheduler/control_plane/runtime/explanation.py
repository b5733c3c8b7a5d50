"""Explanations of items and calls, and rows of jobs, actors, clusters and nodes, as plain data.

Runtime, the local socket and the HTTP routes call these functions on the loop of the control plane. An explanation says
why an item is in its state (``code`` and ``sentence``), and what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.exception import PolicyEvaluationError, UnknownItemError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription, TaskState
from ray_multicluster_scheduler.common.redaction import MASKED, mask_data, mask_text
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import CallItem
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.item import ANSWERED
from ray_multicluster_scheduler.control_plane.runtime.job_status import EXPIRED, JOB_STATUS
from ray_multicluster_scheduler.control_plane.runtime.pools import with_pool_use
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.environment import markers
from ray_multicluster_scheduler.scheduler.lifecycle import retry
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import StartEstimate
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import UnmetPrerequisites
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import attempts_of, shown_history
from ray_multicluster_scheduler.scheduler.policy.reasons import (
    CLUSTER_SUSPECT,
    DASHBOARD_SILENT,
    HEAD_SILENT,
    LINK_FAILED,
)
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

ABANDONED = "ABANDONED"
FORGOTTEN = "it ended long ago and was deleted"
ANSWERING = frozenset({"UP", DASHBOARD_SILENT, LINK_FAILED})
"""States of clusters that report their resources, although some kinds of items may not be sent there."""
_MAX_DIGITS = 9
_QUERIED_LATER = "queried when an item waits for it, or on request"
_MARKERS = markers("", "", 0, 0)


def item_explanation(runtime: Runtime, task_id: str) -> Explanation:
    """The explanation of an item, or for a member of a gang, that of the gang. Raises UnknownItemError."""
    gang_id = gang_of(runtime, task_id)
    if gang_id is not None:
        gang = item_explanation(runtime, gang_id)
        names = [one["name"] for one in gang.get("gang", {}).get("members") or ()]
        return Explanation(**gang, member=member_summary(task_id, names))
    record = find_record(runtime, task_id)
    if record is None:
        state, code, sentence = _unrecorded(runtime, task_id)
        return Explanation(id=task_id, state=state, code=code, sentence=sentence)
    history = runtime.manager.log.history(task_id)
    prepared = runtime.preparation.prepared.get(task_id)
    abandoned = _abandoned(runtime, record)
    now = runtime.clock.now()
    code, sentence = current_reason(runtime, record, CurrentWaitReasons(runtime.machine, now))
    return Explanation(
        **_actor_fields(record),
        **_gang_fields(record),
        id=task_id,
        kind=record.task.kind,
        name=record.task.name,
        owner=record.task.owner,
        priority=record.wanted.priority,
        **record.wanted.pool_fields,
        **repeats_of(record.task),
        state=str(abandoned.state if abandoned else record.state),
        cluster=record.cluster,
        attempt=record.attempt,
        code=ABANDONED if abandoned else code,
        sentence=abandoned.message if abandoned else sentence,
        **_wait_fields(runtime, record, now),
        notes=_crash_notes(runtime, record),
        attempts=[row.to_dict() for row in attempts_of(history, record.fences)],
        runtime_env=_without_secrets(prepared.runtime_env) if prepared else None,
        converted_paths=[list(pair) for pair in prepared.converted] if prepared else [],
        history=[step.to_dict() for step in shown_history(history)],
    )


def repeats_of(task: TaskDescription) -> dict[str, Any]:
    """``{"repeats": id}`` for a retry of another item."""
    return {} if task.repeats is None else {"repeats": task.repeats}


def member_summary(task_id: str, names: Sequence[str]) -> dict[str, Any]:
    """Which member of a gang this is; ``names`` are those of its members, as far as they are known."""
    at = int(task_id.rpartition(".")[2])
    return {"id": task_id, "index": at, "name": names[at] if at < len(names) else None}


def id_interpretations(task_id: str) -> list[tuple[str, int | None]]:
    """Possible meanings of an id, in this order: an item, or a member of a gang with its index."""
    gang_id, _, at = task_id.rpartition(".")
    if not gang_id or not at.isdecimal() or len(at) > _MAX_DIGITS:
        return [(task_id, None)]
    return [(task_id, None), (gang_id, int(at))]


def is_member(task: TaskDescription, task_id: str) -> bool:
    """Whether this is the id of a member of this gang."""
    return any(task_id == member_id(task.id, at) for at in range(len(task.gang.members) if task.gang else 0))


def gang_of(runtime: Runtime, task_id: str) -> str | None:
    """The id of the gang, if this is the id of one of its members."""
    gang_id, _, at = task_id.rpartition(".")
    if not at.isdecimal() or runtime.item(task_id) is not None or runtime.record(task_id) is not None:
        return None
    known = runtime.item(gang_id) or runtime.record(gang_id)
    if known is None:
        forgotten = gang_id.startswith("gang-") and gang_id in runtime.expired
        return gang_id if forgotten else None
    return gang_id if is_member(known.task, task_id) else None


def current_wait_reasons(runtime: Runtime) -> CurrentWaitReasons:
    """For one answer; share it among all rows of that answer."""
    return CurrentWaitReasons(runtime.machine, runtime.clock.now())


def current_reason(runtime: Runtime, record: TaskRecord, reasons: CurrentWaitReasons) -> tuple[str, str]:
    """Code and sentence of its state, with the present problem of its cluster."""
    code, sentence = reasons.of(record)
    note = _cluster_note(runtime, record)
    if code == CLUSTER_SUSPECT and note:  # its sentence was true when the cluster fell silent
        return code, f"{record.cluster} has it{note}"
    return code, sentence + note


def _wait_fields(runtime: Runtime, record: TaskRecord, now: float) -> dict[str, Any]:
    """The fields of a waiting item; its decision is made again for the present state of the clusters."""
    machine, task_id = runtime.machine, record.task.id
    placed = None if record.decision is None else record.decision.in_full()
    decision, place = machine.explain_wait(task_id, now) or placed, machine.queue_position(task_id, now)
    decision = None if decision is None else with_pool_use(machine, decision, record.wanted.pool)
    estimate = machine.estimate_start(task_id, None if place is None else place.position, decision, now)
    at = None if place is None else (place.position, place.ahead)
    return {
        **wait_explanation(machine.unmet_prerequisites(task_id), at, decision, estimate, held=record.held is not None),
        "decision": None if decision is None else {**decision.to_dict(), "filters": list(machine.filter_names)},
    }


def _actor_fields(record: TaskRecord) -> dict[str, Any]:
    actor = record.task.actor
    if actor is None:
        return {}
    holds = record.task.requirements if record.state is TaskState.RUNNING else {}
    return {
        "actor": {
            "name": actor.public_name,
            "lifetime": actor.lifetime,
            "max_restarts": actor.max_restarts,
            "needs_to_start": dict(actor.placement),
            "holds": dict(holds),
        }
    }


def _gang_fields(record: TaskRecord) -> dict[str, Any]:
    gang = record.task.gang
    if gang is None:
        return {}
    members = [{"name": member.name, "requirements": dict(member.requirements)} for member in gang.members]
    return {"gang": {"of": gang.of, "strategy": gang.strategy, "members": members}}


def _cluster_note(runtime: Runtime, record: TaskRecord) -> str:
    """Note on its cluster: the condition it waits for there, or a problem; empty if there is neither."""
    if record.cluster is None or not record.live:
        return ""
    starting = None if record.task.kind == "job" or record.accepted else runtime.links.starting_since(record.cluster)
    if starting is not None:
        return f"; {_being_started(record.cluster, runtime.clock.now() - starting)}"
    return_wait_s = None if record.task.kind == "job" else runtime.links.return_wait_s(record.cluster)
    if return_wait_s is not None:
        return f", but {_awaited_agent(return_wait_s)}"
    problem = runtime.machine.view(record.cluster, runtime.clock.now()).problem
    if problem is None:
        return ""
    note = f", but {record.cluster} has a problem: {problem.sentence}"
    state = runtime.machine.registry.state(record.cluster)
    if record.task.kind == "job" and record.code == CLUSTER_SUSPECT:
        retry_lost = record.task.retry_lost and problem.code != HEAD_SILENT
        return f"{note}; {state.job_wait(retry_lost=retry_lost)}"
    if problem.code != CLUSTER_SUSPECT or record.task.kind == "job":  # these are not given up
        return note
    return f"{note}; {state.lease_wait(runtime.clock.now())}"


def _crash_notes(runtime: Runtime, record: TaskRecord) -> list[str]:
    """Clusters whose workers crashed so often of late that one might expect their breakers to have opened."""
    limit = runtime.config.settings.breaker_failures
    recent = {state.name: state.breaker.recent_attempts for state in runtime.machine.registry}
    return [
        f"{name}: the workers of {sum(crashed)} of the last {len(crashed)} attempts there crashed; that does not "
        f"count for breaker_failures ({limit}), because user code can be the cause"
        for name, crashed in recent.items()
        if sum(crashed) >= limit and (name == record.cluster or not record.state.terminal)
    ]


def _being_started(cluster: str, seconds: float) -> str:
    return f"the agent on {cluster} has been starting for {max(0.0, seconds):.0f} s; tasks and actors wait for it"


def _awaited_agent(seconds: float) -> str:
    return f"its agent has not come back yet after this restart: the wait for it ends in {seconds:.0f} s"


def _unrecorded(runtime: Runtime, task_id: str) -> tuple[str, str, str]:
    """State, code and sentence of an item that the machine has no record of."""
    item = runtime.item(task_id)
    if item is None or item.outcome is None:
        return EXPIRED, EXPIRED, FORGOTTEN
    return str(item.state), ABANDONED, item.outcome.completion.message


def _abandoned(runtime: Runtime, record: TaskRecord) -> Complete | None:
    """The completion that its owner got, if the control plane ended before the item did."""
    item = runtime.item(record.task.id)
    outcome = None if item is None else item.outcome
    # For a detached actor: it is left alone before its link is closed, so its owner's completion is the true one.
    return outcome.completion if outcome is not None and outcome.completion.state is not record.state else None


def _without_secrets(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Hides the values of environment variables, which often hold tokens, except our own markers."""
    shown: dict[str, Any] = mask_data(runtime_env)
    if shown.get("env_vars"):
        shown["env_vars"] = {name: value if name in _MARKERS else MASKED for name, value in shown["env_vars"].items()}
    return shown


def find_record(runtime: Runtime, task_id: str) -> TaskRecord | None:
    """The record; None if it was forgotten, or abandoned before there was one. Raises UnknownItemError for an id
    that was never issued."""
    record = runtime.record(task_id)
    if record is None and runtime.item(task_id) is None and task_id not in runtime.expired:
        raise unknown_item(task_id)
    return record


def unknown_item(task_id: str) -> UnknownItemError:
    """The error for an id that was never issued here."""
    return UnknownItemError(
        f"There is no item {task_id!r} here.",
        task_id=task_id,
        next_step="use an id that a submit call returned: in this program before its scheduler was shut down, or in "
        "any program of the same service",
    )


def job_rows(runtime: Runtime) -> list[dict[str, Any]]:
    """Every job that was not forgotten, oldest first."""
    reasons = current_wait_reasons(runtime)
    return [job_row(runtime, one.task.id, reasons) for one in runtime.machine.records() if one.task.kind == "job"]


def job_row(runtime: Runtime, job_id: str, reasons: CurrentWaitReasons | None = None) -> dict[str, Any]:
    record = find_record(runtime, job_id)
    if record is None:
        state, _, sentence = _unrecorded(runtime, job_id)
        return {
            "job_id": job_id,
            "status": EXPIRED if state == EXPIRED else JOB_STATUS[TaskState(state)],
            "message": sentence,
        }
    abandoned = _abandoned(runtime, record)
    if abandoned is not None:
        return job_document(record, abandoned.state, abandoned.message, runtime.jobs.ray_id)
    message = current_reason(runtime, record, reasons or current_wait_reasons(runtime))[1]
    return job_document(record, record.state, message, runtime.jobs.ray_id)


def job_document(
    row: TaskRecord | ItemRow, state: TaskState, message: str, ray_id: Callable[[str, int], str]
) -> dict[str, Any]:
    """A job in the form of Ray's job API. Raises UnknownItemError if the item is no job."""
    task = row.task
    if task.job is None:
        raise UnknownItemError(f"{task.id!r} is a {task.kind}, not a job.", task_id=task.id)
    return {
        "job_id": task.id,
        "status": JOB_STATUS[state],
        "entrypoint": mask_text(task.job.entrypoint),
        "metadata": mask_data(task.job.metadata),
        **(row.wanted if isinstance(row, TaskRecord) else replace(task, pool=row.pool)).pool_fields,
        "cluster": row.cluster,
        "attempt": row.attempt,
        "ray_submission_id": ray_id(task.id, row.attempt) if row.attempt else None,
        "message": message,
        "submitted_at": task.submitted_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def actor_rows(runtime: Runtime) -> list[dict[str, Any]]:
    """Every actor that was not forgotten, oldest first; each member of a gang has a row."""
    rows, reasons = [], current_wait_reasons(runtime)
    for record in runtime.machine.records():
        task = record.task
        if not task.runs_actors:
            continue
        abandoned = _abandoned(runtime, record)
        row = {
            "id": task.id,
            "name": task.actor.public_name if task.actor else None,
            "class": task.name,
            "state": str(abandoned.state if abandoned else record.state),
            "cluster": record.cluster,
            "attempt": record.attempt,
            "lifetime": task.actor.lifetime if task.actor else None,
            **record.wanted.pool_fields,
            "message": abandoned.message if abandoned else current_reason(runtime, record, reasons)[1],
        }
        members = () if task.gang is None else task.gang.members
        of_gang = [{**row, "id": member_id(task.id, at), "class": one.name} for at, one in enumerate(members)]
        rows += of_gang or [row]
    return rows


def cluster_rows(runtime: Runtime) -> list[dict[str, Any]]:
    """One row per cluster; None for unknown values."""
    return [_cluster_row(runtime, one.name) for one in runtime.machine.registry.list()]


def _cluster_row(runtime: Runtime, name: str) -> dict[str, Any]:
    metadata, now = runtime.machine.registry.get(name), runtime.clock.now()
    view = runtime.machine.view(name, now)
    snapshot = runtime.machine.registry.latest_snapshot(name)
    link = runtime.links.existing_link(name)
    info = link.info if link is not None and link.connected else None
    choice = runtime.links.carrier(name)
    link_name = info.carrier if info is not None else (None if choice is None else choice.carrier)
    problem = view.problem or view.job_problem or view.link_problem
    return_wait_s = runtime.links.return_wait_s(name)
    stale = problem is not None and problem.being_asked
    sentence = ""
    if problem is not None:  # only one of the two ways to the cluster may be closed
        unaffected = {DASHBOARD_SILENT: "; tasks and actors continue over its link", LINK_FAILED: " Jobs go there."}
        sentence = problem.sentence + unaffected.get(problem.code, "")
        if problem.code == CLUSTER_SUSPECT and view.in_flight + view.prefetched > view.running_jobs:
            sentence += f"; {runtime.machine.registry.state(name).lease_wait(now)}"
    if not runtime.machine.registry.state(name).refreshing:  # no item waits for it, so it is not queried
        sentence = sentence.replace("a request is under way", f"it is {_QUERIED_LATER}")
        sentence = sentence.replace("is being tried again", f"is {_QUERIED_LATER}")
    starting = runtime.links.starting_since(name)
    waits = "" if return_wait_s is None else _awaited_agent(return_wait_s)
    starts = "" if starting is None else _being_started(name, now - starting)
    return {
        "name": name,
        "state": "UP" if problem is None else problem.code,
        "sentence": "; ".join(filter(None, (sentence, waits, starts))),
        "stale": stale,
        "agent_awaited_until": None if return_wait_s is None else now + return_wait_s,
        "cordoned": view.cordoned,
        "cordon_reason": view.cordon_reason or None,
        "paused": view.paused,
        "items": view.in_flight + view.prefetched,
        "carrier": link_name if link is not None else ("http" if metadata.dashboard else None),
        "tasks_by": None if choice is None else f"{choice.carrier}: {choice.why}",
        "other_control_planes": list(runtime.links.other_control_planes(name)),
        "tags": list(metadata.tags),
        "prefer": metadata.prefer,
        "weight": metadata.weight,
        "dashboard": metadata.dashboard,
        "head_address": metadata.head_address,
        "current": runtime.machine.registry.state(name).nodes_are_current(now),
        "snapshot_at": view.snapshot_at,
        "nodes": len(snapshot.nodes) if snapshot else None,
        "total": snapshot.total() if snapshot else None,
        "free": runtime.machine.registry.state(name).ledger.free(),
        "ray_version": snapshot.ray_version if snapshot else None,
        "python_version": info.python_version if info else (snapshot.python_version if snapshot else None),
        "os": info.os if info else (snapshot.os if snapshot else None),
        "arch": info.arch if info else (snapshot.arch if snapshot else None),
    }


def node_rows(runtime: Runtime, clusters: Collection[str]) -> list[dict[str, Any]]:
    """The nodes of these clusters in their last snapshots, with the field names of Ray's API."""
    latest = runtime.machine.registry.latest_snapshot
    return [
        {"NodeID": node.node_id, "Alive": True, "Resources": dict(node.total), "Cluster": name}
        for name in clusters
        if (snapshot := latest(name)) is not None
        for node in snapshot.nodes
    ]


MAX_SHAPES = 100
"""Shapes evaluated for one answer; items of further shapes show their last recorded reason."""

Reason = tuple[str, str]


class CurrentWaitReasons:
    """Present reasons of waiting items, for one answer. Items of one shape have the same reason, so each shape is
    evaluated once, and all of them with the same views of the clusters."""

    def __init__(self, machine: SchedulerMachine, now: float) -> None:
        self._machine, self._now = machine, now
        self._known: dict[ShapeGroup, Reason | None] = {}
        self._views: tuple[ClusterView, ...] | None = None

    def of(self, record: TaskRecord) -> Reason:
        """Code and sentence of its state; for an item that does not wait, those of its last transition."""
        missing = self._machine.unmet_prerequisites(record.task.id)
        if missing is not None:
            held = "" if record.held is None else f"; is held{f': {record.held}' if record.held else ''}"
            return missing.code, missing.sentence + held
        left = self._machine.retry_delay_left(record.task.id, self._now)
        if left is not None:
            return record.code, retry.as_of_now(record.sentence, left)
        group = record.group
        if group is None or (group not in self._known and len(self._known) >= MAX_SHAPES):
            return record.code, record.sentence
        if group not in self._known:
            self._known[group] = self._evaluated(record)
        return self._known[group] or (record.code, record.sentence)

    def _evaluated(self, record: TaskRecord) -> Reason | None:
        """None if it is about to be placed: then the last recorded reason of each item applies."""
        if self._views is None:
            self._views = self._machine.fresh_views(self._now)
        try:
            decision = self._machine.explain_wait(record.task.id, self._now, self._views)
        except PolicyEvaluationError:
            decision = None  # the scheduling pass reports it, and ends the item
        if decision is None or decision.cluster is not None:
            return None
        return decision.code, decision.sentence


def wait_explanation(
    missing: UnmetPrerequisites | None,
    place: tuple[int, Sequence[tuple[str, str]]] | None,
    decision: SchedulingDecision | None,
    estimate: StartEstimate | None,
    *,
    held: bool = False,
) -> dict[str, Any]:
    """The wait fields of an explanation; None or empty for an item that does not wait.

    ``missing``: what it waits for before it is queued; ``place``: its position in the queue (1: the next), and the
    first few items ahead with the reason; ``decision``: why no cluster takes it now; ``estimate``: None if it does not
    wait; ``held``: an operator holds it.
    """
    helps = [] if missing is None else [missing.unblocked_by]
    helps += ["an operator releases it"] if held and estimate is not None else []
    if not helps and decision is not None and decision.unblocked_by and estimate is not None:
        helps = [decision.unblocked_by]
    return {
        "unblocked_by": " and ".join(helps) or None,
        "waits_for": list(missing.after) if missing is not None else [],
        "queue": None
        if place is None
        else {"position": place[0], "ahead": [{"id": task_id, "why": why} for task_id, why in place[1]]},
        "estimate": None if estimate is None else estimate.to_dict(),
    }


def answered_call(call_id: str) -> dict[str, Any]:
    """Only the handle of an answered call knows more."""
    return Explanation(id=call_id, kind="call", state=EXPIRED, code=ANSWERED, sentence="it was answered")


def call_explanation(call: CallItem) -> dict[str, Any]:
    """The state of a call of an actor method."""
    over = call.outcome
    sentence, before = (over.completion.message, 0) if over is not None else call.actor.wait_reason(call)
    return call.summary("SENT" if call.sent_to else "WAITS", sentence, before)
