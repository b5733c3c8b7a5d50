"""A link to a real cluster without a scheduler: submits calls, and records what the agent reports."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.control_plane.config import load_config
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallResult,
    ClusterLink,
    MethodCall,
    NewActor,
)
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from tests.support.eventually import eventually
from tests.support.links import RecordingListener


def task(task_id: str, function: Callable[..., Any], *args: Any, attempt: int = 1, **values: Any) -> Call:
    """A call of a function, ready to be sent."""
    pickled = pickling.dumps(function)
    return Call(
        task_id=task_id,
        attempt=attempt,
        fence=attempt,
        name=task_id,
        function_digest=str(hash(pickled)),
        function=pickled,
        arguments=pickling.dumps((args, {})),
        **{"resources": {"CPU": 1.0}, **values},
    )


def method(
    task_id: str, actor_id: str, name: str, number: int, *args: Any, attempt: int = 1, life: int = 0, **values: Any
) -> Call:
    """A call of an actor's method; ``attempt`` is the actor's."""
    return Call(
        task_id=task_id,
        attempt=1,
        fence=attempt,
        name=name,
        function_digest="",
        function=b"",
        arguments=pickling.dumps((args, {})),
        resources={},
        method=MethodCall(actor_id, attempt, name, number, life=life),
        **values,
    )


class BareLink:
    """One link, and the recorded reports on it."""

    def __init__(self, link: ClusterLink, received: RecordingListener, pool: RayClientPool) -> None:
        self.link, self.received, self.pool = link, received, pool

    def submit(self, *calls: Call) -> None:
        self.link.submit(calls)

    def make(self, actor_id: str, cls: type, *args: Any, attempt: int = 1, **values: Any) -> str:
        """Submit an actor; returns its name in Ray. ``values`` are NewActor's, and ``objects`` and ``runtime_env``."""
        of_call = {name: values.pop(name) for name in ("objects", "runtime_env") if name in values}
        spec = NewActor(**{"ray_name": f"rmcs-test-{actor_id}", "placement": {"CPU": 1.0}, **values})
        self.submit(task(actor_id, cls, *args, attempt=attempt, resources={}, actor=spec, **of_call))
        return spec.ray_name

    async def result(self, task_id: str, attempt: int = 1, timeout: float = 60.0) -> CallResult:
        """Wait for its result."""

        def answers() -> list[CallResult]:
            return [one for one in self.received.results() if (one.task_id, one.attempt) == (task_id, attempt)]

        await eventually(answers, lambda: f"the answer to {task_id}, heard {self.received.kinds()}", timeout)
        (answer,) = answers()
        return answer

    async def value(self, task_id: str, timeout: float = 60.0) -> Any:
        """Wait for its value; fails the test if it did not succeed."""
        answer = await self.result(task_id, timeout=timeout)
        assert answer.status == "succeeded", answer
        return pickling.loads(answer.payload or b"")

    async def started(self, task_id: str, attempt: int = 1) -> None:
        await eventually(lambda: "started" in self._story(task_id, attempt), lambda: str(self.received.events), 60)

    def _story(self, task_id: str, attempt: int) -> list[str]:
        return [event[0] for event in self.received.events if event[1:3] == (task_id, attempt)]

    def printed(self, task_id: str) -> str:
        return "".join(event[4] for event in self.received.of("output") if event[1] == task_id)


@asynccontextmanager
async def bare_link(config: Path, cluster: str, **settings: Any) -> AsyncIterator[BareLink]:
    """A link of a separate control plane to this cluster; its agent ends with it."""
    whole = load_config(config)
    clusters = {one.name: one for one in whole.clusters}
    jobs, received = JobClientPool(clusters), RecordingListener()
    pool = RayClientPool(
        clusters,
        whole.settings.model_copy(update=settings),
        jobs,
        received,
        SystemClock(),
        f"bare-{secrets.token_hex(4)}",
        PackageCache(),
    )
    try:
        yield BareLink(await pool.link(cluster), received, pool)
    finally:
        await pool.close()
        await jobs.close()
        await asyncio.sleep(0)
