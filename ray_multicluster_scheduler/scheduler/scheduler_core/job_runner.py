"""JobRunner: submits jobs to the Jobs API of clusters, polls them and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError
from ray_multicluster_scheduler.common.logging import about_item, get_logger
from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.common.redaction import item_secrets, mask_values
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchAccepted,
    DispatchRefused,
    Event,
    Started,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Dispatch,
    RecallAttempt,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import AttemptPreparation, PreparedAttempt
from ray_multicluster_scheduler.scheduler.scheduler_core.dispatcher import BackgroundTasks

_log = get_logger(__name__)
POLL_S = 0.5
_RETRY_S = 2.0
_UNKNOWN_LIMIT = 3
_CANCELLED_UNKNOWN_LIMIT = 15
_BAD_ENVIRONMENT = ("RUNTIME_ENV_SETUP_FAILURE", "JOB_SUPERVISOR_ACTOR_START_FAILURE")


@dataclass(slots=True)
class _Watched:
    """One attempt of one job on a cluster."""

    order: Dispatch | AdoptAttempt
    ray_id: str
    started: bool = False
    stop_wanted: bool = False
    unknown_polls: int = 0
    silent: bool = False
    pending_at: float | None = None
    """When a poll last saw it pending: a job that has ended by the next poll started after that."""


@dataclass(slots=True)
class _UncertainSubmit:
    """A submit of which it is unknown whether the cluster carried it out."""

    exists: bool = False
    answered: bool = True
    absent: int = 0

    def add_failure(self, problem: DashboardProblem) -> None:
        """``answered`` stays true only while every failure was an answer, so that no request is still in flight."""
        self.answered = self.answered and problem.code == "BAD_ANSWER"
        self.exists = True

    def count_absent(self, found: bool | None) -> int:
        """The number of consecutive answers that the cluster does not know the job."""
        self.absent = self.absent + 1 if found is False else 0
        return self.absent


@dataclass(slots=True)
class _Lane:
    """The watched jobs of one cluster."""

    jobs: dict[tuple[str, int], _Watched] = field(default_factory=dict)
    watcher: asyncio.Task[None] | None = None


class JobRunner:
    """The AttemptRunner (see dispatcher.py) of jobs. Submits each attempt under an id of its own, so that a repeated
    submit finds the first, and polls it to its end."""

    def __init__(
        self,
        describe: Callable[[str], TaskDescription],
        post: Callable[[Event], None],
        clients: JobClientPool,
        preparation: AttemptPreparation,
        clock: Clock,
        control_plane: str,
        background: BackgroundTasks,
    ) -> None:
        self._describe, self._post, self._clients = describe, post, clients
        self._preparation, self._clock, self._control_plane = preparation, clock, control_plane
        self._lanes: dict[str, _Lane] = {}
        self._background, self._spawn = background, background.spawn
        self._submitting: dict[tuple[str, int], asyncio.Task[Any]] = {}
        self._cancelled: set[tuple[str, int]] = set()

    def ray_id(self, task_id: str, attempt: int) -> str:
        """Ray's submission id of an attempt: stable across restarts, different for each attempt."""
        return f"{task_id}-{self._control_plane}-{attempt}"

    def dispatch(self, cluster: str, orders: list[Dispatch]) -> None:
        for order in orders:
            key = order.task_id, order.attempt  # it can be cancelled before _submit begins
            self._submitting[key] = self._spawn(self._submit(order))

    async def _submit(self, order: Dispatch) -> None:
        """Submit one attempt and watch it from then on."""
        key = (order.task_id, order.attempt)
        try:
            task = self._describe(order.task_id)
            made = await self._preparation.job(task, order.cluster, order.attempt, order.fence)
            self._preparation.prepared[task.id] = made
            if key in self._cancelled:
                self._post(AttemptFinished(*key, "cancelled"))
                return
            if not await self._submit_until_settled(order, task, made):
                self._post(AttemptFinished(*key, "cancelled"))
                return
        except DashboardProblem as error:
            self._post(DispatchRefused(*key, FailureClass.CLUSTER, error.code, str(error)))
            return
        except SchedulerError as error:
            self._post(DispatchRefused(*key, FailureClass.PERMANENT, "JOB_REFUSED", str(error)))
            return
        except Exception as error:  # noqa: BLE001 - a defect of ours must not leave the job without an outcome
            extra = _log_fields(order, "DEFECT")
            _log.exception("job %s could not be submitted to cluster %s", order.task_id, order.cluster, extra=extra)
            self._post(DispatchRefused(*key, FailureClass.PERMANENT, "DEFECT", f"{type(error).__name__}: {error}"))
            return
        finally:
            stop_wanted = key in self._cancelled
            self._submitting.pop(key, None)
            self._cancelled.discard(key)
        self._post(DispatchAccepted(*key))
        watched = _Watched(order, self.ray_id(*key), stop_wanted=stop_wanted)
        self._watch(watched)
        if watched.stop_wanted:
            await self._stop(watched)

    def start(self, order: StartAttempt) -> None:
        """Jobs are never prefetched."""

    def recall(self, order: RecallAttempt) -> None:
        """Jobs are never prefetched."""

    def adopt(self, order: AdoptAttempt) -> None:
        self._watch(_Watched(order, self.ray_id(order.task_id, order.attempt), started=True))

    def cancel(self, order: CancelAttempt) -> None:
        """Stop a job; the watcher reports its end. The program may end meanwhile, but not before the job is stopped."""
        key = (order.task_id, order.attempt)
        if key in self._submitting:
            self._cancelled.add(key)
            self._background.finish(self._submitting[key])
            return
        lane = self._lanes.get(order.cluster)
        watched = lane.jobs.get(key) if lane else None
        if watched is not None:
            watched.stop_wanted = True
            self._background.finish(self._spawn(self._stop(watched)))

    async def _submit_until_settled(self, order: Dispatch, task: TaskDescription, made: PreparedAttempt) -> bool:
        """Repeat a submit with an unknown outcome, under the same id, until it is known. False: cancelled, and the
        cluster does not have it.

        A request that timed out may still be carried out; until that is settled the job must not go to another cluster.
        A dashboard that *answers* with an error, and then does not know the job, has refused it.
        """
        uncertain = _UncertainSubmit()
        while True:
            try:
                if uncertain.exists and (order.task_id, order.attempt) in self._cancelled:
                    found = await self._is_known(order)
                    if found or uncertain.count_absent(found) >= _CANCELLED_UNKNOWN_LIMIT:
                        return bool(found)
                else:
                    await self._send(order, task, made)
                    return True
            except DashboardProblem as problem:
                if not uncertain.exists:
                    if not problem.ambiguous:
                        raise
                    message = mask_values(str(problem), item_secrets(task))
                    _log.warning(
                        "whether job %s reached cluster %s is unknown: %s",
                        task.id,
                        order.cluster,
                        message,
                        extra=_log_fields(order, problem.code),
                    )
                uncertain.add_failure(problem)
                if uncertain.answered and uncertain.count_absent(await self._is_known(order)) >= _UNKNOWN_LIMIT:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _is_known(self, order: Dispatch) -> bool | None:
        """Whether the cluster knows the job; None if it does not answer."""
        try:
            info = await self._clients.client(order.cluster).job_info(self.ray_id(order.task_id, order.attempt))
        except ClusterConnectionError:
            return None  # logged once, by the caller
        return info is not None

    async def _send(self, order: Dispatch, task: TaskDescription, made: PreparedAttempt) -> None:
        if task.job is None:
            raise TypeError(f"{task.id} is not a job")
        own = task.job.entrypoint_resources
        custom = {name: amount for name, amount in own.items() if name not in ("CPU", "GPU", "memory")}
        await self._clients.client(order.cluster).submit_job(
            self.ray_id(task.id, order.attempt),
            made.entrypoint or task.job.entrypoint,
            runtime_env=made.runtime_env,
            metadata={
                **task.job.metadata,
                "rmcs_control_plane": self._control_plane,
                "rmcs_task": task.id,
                "rmcs_attempt": str(order.attempt),
            },
            entrypoint_num_cpus=own.get("CPU", 0),
            entrypoint_num_gpus=own.get("GPU"),
            entrypoint_memory=int(own["memory"]) if "memory" in own else None,
            entrypoint_resources=custom or None,
        )
        crash_point("after send")

    def _watch(self, watched: _Watched) -> None:
        lane = self._lanes.setdefault(watched.order.cluster, _Lane())
        lane.jobs[(watched.order.task_id, watched.order.attempt)] = watched
        if lane.watcher is None or lane.watcher.done():
            lane.watcher = self._spawn(self._watch_lane(watched.order.cluster, lane))

    async def _watch_lane(self, cluster: str, lane: _Lane) -> None:
        """Poll each watched job of a cluster, twice a second."""
        while lane.jobs:
            await asyncio.gather(*(self._poll(cluster, lane, watched) for watched in list(lane.jobs.values())))
            if lane.jobs:
                await asyncio.sleep(POLL_S)

    async def _poll(self, cluster: str, lane: _Lane, watched: _Watched) -> None:
        try:
            info = await self._clients.client(cluster).job_info(watched.ray_id)
        except ClusterConnectionError as error:
            if not watched.silent:
                extra = _log_fields(watched.order, error.code)
                job = watched.order.task_id
                _log.warning("cluster %s does not answer about job %s: %s", cluster, job, error, extra=extra)
            watched.silent = True
            return
        except Exception:  # noqa: BLE001 - one failed poll must not end the watch over the others
            extra = _log_fields(watched.order, "DEFECT")
            _log.exception("polling cluster %s for job %s failed", cluster, watched.order.task_id, extra=extra)
            return
        watched.silent = False
        if info is None:
            watched.unknown_polls += 1
            if watched.unknown_polls >= _UNKNOWN_LIMIT:
                self._finish(lane, watched, _job_unknown(watched, cluster))
            return
        watched.unknown_polls = 0
        self._handle_status(lane, watched, info)

    def _handle_status(self, lane: _Lane, watched: _Watched, info: dict[str, Any]) -> None:
        status = str(info.get("status"))
        order = watched.order
        if status == "PENDING":
            watched.pending_at = self._clock.now()
            return
        if not watched.started and (status == "RUNNING" or info.get("start_time")):
            watched.started = True
            self._post(Started(order.task_id, order.attempt, self._start_time(watched, status, info)))
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            self._finish(lane, watched, _ending(watched, status, info))

    def _start_time(self, watched: _Watched, status: str, info: dict[str, Any]) -> float:
        """When the job started, by our clock. If it ended between two polls: computed from the duration that the
        cluster reports, but not before it was last seen pending."""
        now = self._clock.now()
        if status == "RUNNING" or watched.pending_at is None:
            return now
        begin, end = info.get("start_time"), info.get("end_time")
        if not isinstance(begin, int | float) or not isinstance(end, int | float):
            return watched.pending_at
        return min(now, max(watched.pending_at, now - (end - begin) / 1000))

    def _finish(self, lane: _Lane, watched: _Watched, event: AttemptFinished) -> None:
        lane.jobs.pop((watched.order.task_id, watched.order.attempt), None)
        self._post(event)

    async def _stop(self, watched: _Watched) -> None:
        """Repeat until the cluster answers: otherwise the job would run on."""
        lane = self._lanes[watched.order.cluster]
        logged = False
        while (watched.order.task_id, watched.order.attempt) in lane.jobs:
            try:
                await self._clients.client(watched.order.cluster).stop_job(watched.ray_id)
                return
            except ClusterConnectionError as error:
                if not logged:
                    extra = _log_fields(watched.order, error.code)
                    _log.warning("job %s could not be stopped yet: %s", watched.order.task_id, error, extra=extra)
                logged = True
            except Exception:  # noqa: BLE001 - a defect of ours must not let the job run on
                extra = _log_fields(watched.order, "DEFECT")
                _log.exception("job %s could not be stopped yet", watched.order.task_id, extra=extra)
            await asyncio.sleep(_RETRY_S)


def _log_fields(order: Dispatch | AdoptAttempt, reason: str) -> dict[str, Any]:
    return about_item(order.task_id, order.attempt, order.cluster, reason)


def _ending(watched: _Watched, status: str, info: dict[str, Any]) -> AttemptFinished:
    order, message = watched.order, str(info.get("message") or "")
    if status == "SUCCEEDED":
        return AttemptFinished(order.task_id, order.attempt, "succeeded")
    if status == "STOPPED":
        return AttemptFinished(order.task_id, order.attempt, "cancelled", sentence=message, code="JOB_STOPPED")
    exit_code = info.get("driver_exit_code")
    failure, code = FailureClass.USER, "JOB_FAILED"
    if "Failed to download runtime_env file package" in message:  # the cluster dropped it; it is uploaded again
        failure, code = FailureClass.CRASH, "PACKAGE_MISSING"
    elif info.get("error_type") in _BAD_ENVIRONMENT:
        failure, code = FailureClass.PERMANENT, "RUNTIME_ENV_FAILED"
    elif exit_code is None:
        failure, code = FailureClass.CRASH, "JOB_SUPERVISOR_DIED"
    return AttemptFinished(
        order.task_id,
        order.attempt,
        "failed",
        failure,
        error_type="JobFailed",
        code=code,
        sentence=message or f"the job failed with exit code {exit_code}",
    )


def _job_unknown(watched: _Watched, cluster: str) -> AttemptFinished:
    return AttemptFinished(
        watched.order.task_id,
        watched.order.attempt,
        "failed",
        FailureClass.CLUSTER,
        error_type="ClusterLostError",
        code="CLUSTER_RESTARTED",
        sentence=f"cluster {cluster!r} answers, but does not know the job any more: it was restarted",
    )
