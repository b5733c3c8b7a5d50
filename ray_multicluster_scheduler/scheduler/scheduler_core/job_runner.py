"""Jobs on their way to and on a cluster's Jobs API: submit, watch, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
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
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import AdoptAttempt, CancelAttempt, Dispatch
from ray_multicluster_scheduler.scheduler.scheduler_core.preparation import AttemptPreparation, PreparedAttempt

_log = get_logger(__name__)
POLL_S = 0.5
_SETTLE_PAUSE_S = 2.0
_FORGOTTEN_AFTER = 3
_GIVEN_UP_AFTER = 15
_BAD_ENVIRONMENT = ("RUNTIME_ENV_SETUP_FAILURE", "JOB_SUPERVISOR_ACTOR_START_FAILURE")


@dataclass(slots=True)
class _Watched:
    """One attempt of one job on a cluster."""

    order: Dispatch | AdoptAttempt
    ray_id: str
    started: bool = False
    stop_wanted: bool = False
    unknown_looks: int = 0
    silent: bool = False
    pending_at: float | None = None
    """When it was last seen to wait in Ray: one that is over at the next look began after that."""


@dataclass(slots=True)
class _Doubt:
    """What is known of a submit whose fate is not."""

    exists: bool = False
    answered: bool = True
    absent: int = 0

    def grows(self, problem: DashboardProblem) -> None:
        """``answered`` stays true only while every failure was an answer, so that nothing is still on its way."""
        self.answered = self.answered and problem.code == "BAD_ANSWER"
        self.exists = True

    def still_absent(self, found: bool | None) -> int:
        """How often in a row the cluster said that it does not know the job."""
        self.absent = self.absent + 1 if found is False else 0
        return self.absent


@dataclass(slots=True)
class _Lane:
    """The watched jobs of one cluster."""

    jobs: dict[tuple[str, int], _Watched] = field(default_factory=dict)
    watcher: asyncio.Task[None] | None = None


class JobRunner:
    """Submits jobs under ids of their own, so that a repeat finds the first, and watches them to their end."""

    def __init__(
        self,
        describe: Callable[[str], TaskDescription],
        post: Callable[[Event], None],
        clients: JobClientPool,
        preparation: AttemptPreparation,
        clock: Clock,
        control_plane: str,
    ) -> None:
        self._describe, self._post, self._clients = describe, post, clients
        self._preparation, self._clock, self._control_plane = preparation, clock, control_plane
        self._lanes: dict[str, _Lane] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._on_the_way: set[tuple[str, int]] = set()
        self._cancelled: set[tuple[str, int]] = set()

    def ray_id(self, task_id: str, attempt: int) -> str:
        """Ray's submission id of an attempt: the same again after a restart, different for each attempt."""
        return f"{task_id}-{self._control_plane}-{attempt}"

    def submit(self, order: Dispatch, prepared: dict[str, PreparedAttempt]) -> Coroutine[Any, Any, None]:
        """Send one attempt and watch it from then on. Every outcome is an event.

        From this call on, before the coroutine's first step, a cancel finds it.
        """
        self._on_the_way.add((order.task_id, order.attempt))
        return self._submit(order, prepared)

    async def _submit(self, order: Dispatch, prepared: dict[str, PreparedAttempt]) -> None:
        key = (order.task_id, order.attempt)
        try:
            task = self._describe(order.task_id)
            made = await self._preparation.job(task, order.cluster, order.attempt, order.fence)
            prepared[task.id] = made
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
        except Exception as error:  # noqa: BLE001 - a defect of ours must not leave the job without an answer
            extra = _about(order, "DEFECT")
            _log.exception("job %s could not be sent to cluster %s", order.task_id, order.cluster, extra=extra)
            self._post(DispatchRefused(*key, FailureClass.PERMANENT, "DEFECT", f"{type(error).__name__}: {error}"))
            return
        finally:
            stop_wanted = key in self._cancelled
            self._on_the_way.discard(key)
            self._cancelled.discard(key)
        self._post(DispatchAccepted(*key))
        watched = _Watched(order, self.ray_id(*key), stop_wanted=stop_wanted)
        self._watch(watched)
        if watched.stop_wanted:
            await self._stop(watched)

    def adopt(self, order: AdoptAttempt) -> None:
        """Watch a job that the process before ours has sent, and that had begun."""
        self._watch(_Watched(order, self.ray_id(order.task_id, order.attempt), started=True))

    def cancel(self, order: CancelAttempt) -> None:
        """Stop it; the watcher sees when it has ended."""
        key = (order.task_id, order.attempt)
        if key in self._on_the_way:
            self._cancelled.add(key)
            return
        lane = self._lanes.get(order.cluster)
        watched = lane.jobs.get(key) if lane else None
        if watched is not None:
            watched.stop_wanted = True
            task = asyncio.get_running_loop().create_task(self._stop(watched))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        """Stop watching; the jobs themselves are not touched."""
        tasks = [lane.watcher for lane in self._lanes.values() if lane.watcher is not None]
        tasks += self._stopping
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _submit_until_settled(self, order: Dispatch, task: TaskDescription, made: PreparedAttempt) -> bool:
        """Repeat a submit whose fate is unknown under the same id until it is known. False: cancelled, and not there.

        A request that timed out may still be carried out; until that is settled the job must not go elsewhere. A
        dashboard that *answers* with an error, and then does not know the job, has refused it.
        """
        doubt = _Doubt()
        while True:
            try:
                if doubt.exists and (order.task_id, order.attempt) in self._cancelled:
                    found = await self._is_there(order)
                    if found or doubt.still_absent(found) >= _GIVEN_UP_AFTER:
                        return bool(found)
                else:
                    await self._send(order, task, made)
                    return True
            except DashboardProblem as problem:
                if not doubt.exists:
                    if not problem.ambiguous:
                        raise
                    said = mask_values(str(problem), item_secrets(task))
                    _log.warning(
                        "whether job %s reached cluster %s is unknown: %s",
                        task.id,
                        order.cluster,
                        said,
                        extra=_about(order, problem.code),
                    )
                doubt.grows(problem)
                if doubt.answered and doubt.still_absent(await self._is_there(order)) >= _FORGOTTEN_AFTER:
                    raise
            await asyncio.sleep(_SETTLE_PAUSE_S)

    async def _is_there(self, order: Dispatch) -> bool | None:
        """Does the cluster know the job? None if it does not tell."""
        try:
            info = await self._clients.client(order.cluster).job_info(self.ray_id(order.task_id, order.attempt))
        except ClusterConnectionError:
            return None  # said once, when the doubt began
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
            lane.watcher = asyncio.get_running_loop().create_task(self._watch_lane(watched.order.cluster, lane))

    async def _watch_lane(self, cluster: str, lane: _Lane) -> None:
        """Ask for each job of ours there, twice a second; nobody else's job is asked for."""
        while lane.jobs:
            await asyncio.gather(*(self._look(cluster, lane, watched) for watched in list(lane.jobs.values())))
            if lane.jobs:
                await asyncio.sleep(POLL_S)

    async def _look(self, cluster: str, lane: _Lane, watched: _Watched) -> None:
        try:
            info = await self._clients.client(cluster).job_info(watched.ray_id)
        except ClusterConnectionError as error:
            if not watched.silent:
                extra = _about(watched.order, error.code)
                job = watched.order.task_id
                _log.warning("cluster %s does not tell how job %s is: %s", cluster, job, error, extra=extra)
            watched.silent = True
            return
        except Exception:  # noqa: BLE001 - one look that went wrong must not end the watch over the others
            extra = _about(watched.order, "DEFECT")
            _log.exception("cluster %s could not be asked for job %s", cluster, watched.order.task_id, extra=extra)
            return
        watched.silent = False
        if info is None:
            watched.unknown_looks += 1
            if watched.unknown_looks >= _FORGOTTEN_AFTER:
                self._finish(lane, watched, _forgotten(watched, cluster))
            return
        watched.unknown_looks = 0
        self._hear(lane, watched, info)

    def _hear(self, lane: _Lane, watched: _Watched, info: dict[str, Any]) -> None:
        status = str(info.get("status"))
        order = watched.order
        if status == "PENDING":
            watched.pending_at = self._clock.now()
            return
        if not watched.started and (status == "RUNNING" or info.get("start_time")):
            watched.started = True
            self._post(Started(order.task_id, order.attempt, self._began(watched, status, info)))
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            self._finish(lane, watched, _ending(watched, status, info))

    def _began(self, watched: _Watched, status: str, info: dict[str, Any]) -> float:
        """By our clock. One that is over was not seen to run: it took as long as its cluster says, and it did not begin
        before it was last seen to wait."""
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
        """Repeat until somebody heard it: a job that should end and is not told so would run on unseen."""
        lane = self._lanes[watched.order.cluster]
        told = False
        while (watched.order.task_id, watched.order.attempt) in lane.jobs:
            try:
                await self._clients.client(watched.order.cluster).stop_job(watched.ray_id)
                return
            except ClusterConnectionError as error:
                if not told:
                    extra = _about(watched.order, error.code)
                    _log.warning("job %s could not be stopped yet: %s", watched.order.task_id, error, extra=extra)
                told = True
            except Exception:  # noqa: BLE001 - a job that should end must not run on because of a defect of ours
                extra = _about(watched.order, "DEFECT")
                _log.exception("job %s could not be stopped yet", watched.order.task_id, extra=extra)
            await asyncio.sleep(_SETTLE_PAUSE_S)


def _about(order: Dispatch | AdoptAttempt, reason: str) -> dict[str, Any]:
    return about_item(order.task_id, order.attempt, order.cluster, reason)


def _ending(watched: _Watched, status: str, info: dict[str, Any]) -> AttemptFinished:
    order, message = watched.order, str(info.get("message") or "")
    if status == "SUCCEEDED":
        return AttemptFinished(order.task_id, order.attempt, "succeeded")
    if status == "STOPPED":
        return AttemptFinished(order.task_id, order.attempt, "cancelled", sentence=message, code="JOB_STOPPED")
    exit_code = info.get("driver_exit_code")
    failure, code = FailureClass.USER, "JOB_FAILED"
    if "Failed to download runtime_env file package" in message:  # the cluster dropped it; it is sent anew
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


def _forgotten(watched: _Watched, cluster: str) -> AttemptFinished:
    return AttemptFinished(
        watched.order.task_id,
        watched.order.attempt,
        "failed",
        FailureClass.CLUSTER,
        error_type="ClusterLostError",
        code="CLUSTER_RESTARTED",
        sentence=f"cluster {cluster!r} answers, but knows nothing of the job any more: it was restarted",
    )
