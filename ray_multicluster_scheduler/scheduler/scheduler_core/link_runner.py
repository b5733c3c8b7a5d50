"""LinkRunner: sends attempts of tasks, actors and gangs as calls over the link of their cluster.

Slow work (starting an agent, uploading a package) runs in an asyncio task of its own and posts its outcome to the
machine as an event. Attempts of one cluster are sent in the order of their placement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError, StoreError
from ray_multicluster_scheduler.common.model import ActorDescription, FailureClass, GangDescription, TaskDescription
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    ClusterLink,
    MemberCall,
    NewActor,
    NewGang,
    SharedObject,
)
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchRefused,
    Event,
    LinkFailed,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Dispatch,
    RecallAttempt,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.policy.reasons import PYTHON_MISMATCH
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import AttemptPreparation, PreparedAttempt
from ray_multicluster_scheduler.scheduler.scheduler_core.dispatcher import BackgroundTasks
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache


class LinkRunner:
    """The AttemptRunner (see dispatcher.py) of all items that run behind a link."""

    def __init__(
        self,
        describe: Callable[[str], TaskDescription],
        post: Callable[[Event], None],
        payload_cache: PayloadCache,
        links: RayClientPool,
        preparation: AttemptPreparation,
        local_python: str,
        lost_after_s: float,
        background: BackgroundTasks,
    ) -> None:
        self._local_python = local_python
        self.orphan_timeout_s = lost_after_s
        """An attempt whose agent is unknown has ended after this time."""
        self.abandoned_clusters: Collection[str] = ()
        """Clusters with agents of the previous process that cannot be reconnected."""
        self._describe, self._post, self._payload_cache = describe, post, payload_cache
        self._links, self._preparation = links, preparation
        self._waiting: dict[str, list[Dispatch]] = {}
        self._preparing: set[tuple[str, int]] = set()
        self._cancelled: set[tuple[str, int]] = set()
        self._placed: set[tuple[str, int]] = set()
        self._spawn = background.spawn

    def dispatch(self, cluster: str, orders: list[Dispatch]) -> None:
        """Send attempts in one batch, or when the link of their cluster is up."""
        link = self._links.existing_link(cluster)
        if cluster in self._waiting:
            self._waiting[cluster] += orders
        elif link is not None:
            self._send(link, orders)
        else:
            self._waiting[cluster] = orders
            self._spawn(self._start_link(cluster))

    def start(self, order: StartAttempt) -> None:
        key = (order.task_id, order.attempt)
        link = self._links.existing_link(order.cluster)
        waiting = self._waiting.get(order.cluster, [])
        if key in self._preparing:
            self._placed.add(key)
        elif (at := _position(waiting, key)) is not None:
            waiting[at] = replace(waiting[at], ahead="")
        elif link is not None:
            link.start(*key)

    def recall(self, order: RecallAttempt) -> None:
        key = (order.task_id, order.attempt)
        if key in self._preparing:
            self._cancelled.add(key)
        elif not self._take_back(order) and (link := self._links.existing_link(order.cluster)) is not None:
            link.recall(*key)

    def cancel(self, order: CancelAttempt) -> None:
        key = (order.task_id, order.attempt)
        if key in self._preparing:
            self._cancelled.add(key)
        elif not self._take_back(order) and (link := self._links.existing_link(order.cluster)) is not None:
            link.cancel(*key, force=order.force)

    def adopt(self, order: AdoptAttempt) -> None:
        link = self._links.existing_link(order.cluster)
        if link is not None:
            link.adopt(order.task_id, order.attempt)
        else:
            ended = AttemptFinished(
                order.task_id,
                order.attempt,
                "failed",
                FailureClass.CLUSTER,
                error_type="ClusterLostError",
                code="AGENT_UNKNOWN",
                sentence=f"its agent in cluster {order.cluster!r} is unknown to this process; its lease has expired",
            )
            self._spawn(self._post_after_lease(ended))

    async def _start_link(self, cluster: str) -> None:
        try:
            link = await self._links.link(cluster)
        except SchedulerError as error:
            self._refuse_waiting(cluster, error)
            return
        except Exception as error:
            self._refuse_waiting(cluster, error)
            raise
        waiting = self._waiting.pop(cluster)
        version = link.info.python_version
        if _minor(version) == _minor(self._local_python):
            self._send(link, waiting)
            return
        sentence = (
            f"cluster {cluster!r} runs Python {version}, this program {self._local_python}: "
            "what one of them pickles, the other cannot load"
        )
        for order in waiting:
            self._refuse(order, FailureClass.CLUSTER, PYTHON_MISMATCH, sentence)

    def _refuse_waiting(self, cluster: str, error: Exception) -> None:
        code, permanent = "LINK_FAILED", False
        if isinstance(error, (LinkProblem, DashboardProblem)):
            code, permanent = error.code, error.permanent
        sentence = _sentence(error)
        self._post(LinkFailed(cluster, code, sentence, permanent))
        for order in self._waiting.pop(cluster):
            self._refuse(order, FailureClass.CLUSTER, code, sentence)

    def _refuse(self, order: Dispatch, failure: FailureClass, code: str, sentence: str) -> None:
        """Report that an attempt cannot be sent. If the previous process may have sent it, it may be running: its agent
        reports its end, or, if the agent cannot be reconnected, it has ended when the lease of that agent expires."""
        link = self._links.existing_link(order.cluster) if order.again else None
        if link is not None:
            link.adopt(order.task_id, order.attempt)
            return
        refusal = DispatchRefused(order.task_id, order.attempt, failure, code, sentence)
        if order.again and order.cluster in self.abandoned_clusters:
            self._spawn(self._post_after_lease(refusal))
        else:
            self._post(refusal)

    async def _post_after_lease(self, event: Event) -> None:
        """Report the end of attempts once the lease of their agent, unknown to this process, has expired."""
        await asyncio.sleep(self.orphan_timeout_s)
        self._post(event)

    def _send(self, link: ClusterLink, orders: list[Dispatch]) -> None:
        calls = []
        for order in orders:
            task = self._describe(order.task_id)
            if self._preparation.needs_upload(task, order.cluster) or not self._payload_cache.is_at_hand(task):
                self._preparing.add((order.task_id, order.attempt))
                self._spawn(self._prepare_and_send(order, task))
            else:
                prepared = self._preparation.plain_task(task, order.cluster, order.attempt)
                try:
                    calls.append(self._call(order, task, prepared))
                except (StoreError, LookupError, StopIteration) as error:  # only this one fails; the others are sent
                    sentence = f"its payload cannot be read: {error!r}"
                    self._refuse(order, FailureClass.PERMANENT, "PAYLOAD_LOST", sentence)
        if calls:
            link.submit(calls)
            crash_point("after send")

    async def _prepare_and_send(self, order: Dispatch, task: TaskDescription) -> None:
        try:
            async with self._payload_cache.at_hand(task):
                await self._prepare(order, task)
        except StoreError as error:
            self._end_preparation((order.task_id, order.attempt))
            self._refuse(order, FailureClass.PERMANENT, "PAYLOAD_LOST", str(error))

    def _end_preparation(self, key: tuple[str, int]) -> tuple[bool, bool]:
        """Whether the attempt was cancelled, or got a slot, while it was prepared."""
        state = key in self._cancelled, key in self._placed
        self._preparing.discard(key)
        self._cancelled.discard(key)
        self._placed.discard(key)
        return state

    async def _prepare(self, order: Dispatch, task: TaskDescription) -> None:
        key = (order.task_id, order.attempt)
        try:
            prepared = await self._preparation.task(task, order.cluster, order.attempt)
        except SchedulerError as error:
            failure = FailureClass.CLUSTER if isinstance(error, ClusterConnectionError) else FailureClass.PERMANENT
            self._refuse(order, failure, "PREPARATION_FAILED", str(error))
            return
        except Exception as error:
            self._refuse(order, FailureClass.PERMANENT, "PREPARATION_FAILED", _sentence(error))
            raise
        finally:
            cancelled, placed = self._end_preparation(key)
        link = self._links.existing_link(order.cluster)
        if cancelled:
            self._post(AttemptFinished(*key, "cancelled"))
        elif link is None:  # an upload takes time; the link may be closed meanwhile
            sentence = f"the link to cluster {order.cluster!r} was closed while packages were uploaded"
            self._refuse(order, FailureClass.CLUSTER, "LINK_CLOSED", sentence)
        else:
            link.submit([self._call(replace(order, ahead="") if placed else order, task, prepared)])

    def _call(self, order: Dispatch, task: TaskDescription, prepared: PreparedAttempt) -> Call:
        self._preparation.prepared[task.id] = prepared
        digest, arguments = task.function_digest or "", task.arguments_digest or ""
        if task.gang is None and not (digest and arguments):
            raise TypeError(f"{task.id} has no payload")
        home = self._preparation.home_of(order.cluster) if task.home_paths else None
        return Call(
            task_id=task.id,
            attempt=order.attempt,
            fence=order.fence,
            name=task.name,
            function_digest=digest,
            function=self._payload_cache.get(digest) if digest else b"",
            arguments=self._payload_cache.get(arguments) if arguments else b"",
            resources=task.requirements,
            runtime_env=prepared.runtime_env,
            homes=tuple(self._preparation.homes) if home else (),
            target_home=home,
            objects=[] if task.gang else [SharedObject(*one) for one in self._payload_cache.objects_of(task.id)],
            ahead=order.ahead,
            short=order.short,
            keep=task.keep is not None,
            streams=task.streams,
            actor=None if task.actor is None else _new_actor(task.actor),
            gang=None if task.gang is None else self._new_gang(task.id, task.gang),
        )

    def _new_gang(self, task_id: str, gang: GangDescription) -> NewGang:
        objects = iter(self._payload_cache.objects_of(task_id))
        members = [
            MemberCall(
                name=member.name,
                function_digest=member.function_digest,
                function=self._payload_cache.get(member.function_digest),
                arguments=self._payload_cache.get(member.arguments_digest),
                resources=member.requirements,
                objects=[SharedObject(*next(objects)) for _ in range(member.objects)],
                asynchronous=member.asynchronous,
            )
            for member in gang.members
        ]
        return NewGang(gang.strategy, gang.of, members)

    def _take_back(self, order: CancelAttempt | RecallAttempt) -> bool:
        """Remove an attempt that still waits for its link, and report it as cancelled."""
        waiting = self._waiting.get(order.cluster, [])
        position = _position(waiting, (order.task_id, order.attempt))
        if position is None:
            return False
        del waiting[position]
        self._post(AttemptFinished(order.task_id, order.attempt, "cancelled"))
        return True


def _position(orders: list[Dispatch], key: tuple[str, int]) -> int | None:
    return next((at for at, order in enumerate(orders) if (order.task_id, order.attempt) == key), None)


def _new_actor(actor: ActorDescription) -> NewActor:
    return NewActor(
        ray_name=actor.ray_name,
        placement=actor.placement,
        detached=actor.detached,
        adopt=actor.adopt,
        max_restarts=actor.max_restarts if actor.detached else 0,
        max_concurrency=actor.max_concurrency,
        asynchronous=actor.asynchronous,
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _sentence(error: Exception) -> str:
    """The message of our own errors; of any other exception also its class."""
    return str(error) if isinstance(error, SchedulerError) else f"{type(error).__name__}: {error}"
