"""RemoteKnown: what a service tells of items and of the fleet, and what it can be told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ray_multicluster_scheduler.app.client_api.options import default_owner
from ray_multicluster_scheduler.app.client_api.remote.acceptance import Acceptance
from ray_multicluster_scheduler.app.client_api.remote.remote_call import RemoteActorCalls, RemoteCall
from ray_multicluster_scheduler.app.client_api.remote.remote_events import told
from ray_multicluster_scheduler.app.client_api.remote.service_client import PATIENCE_S, ServiceClient
from ray_multicluster_scheduler.app.client_api.remote.submission_sender import Outbound
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import NO_LIMITS, OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventIterator
from ray_multicluster_scheduler.control_plane.runtime.explanation import is_member, member_summary
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import LoopThread
from ray_multicluster_scheduler.control_plane.runtime.outcome import not_in_time
from ray_multicluster_scheduler.scheduler.lifecycle import events as brain
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.remote.remote_calls import RemoteCalls

JOBS_AT_ONCE = 1000


class RemoteOutput:
    """What tasks print, read from the service when somebody asks."""

    def __init__(self, runtime: RemoteKnown) -> None:
        self._runtime = runtime

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        if not attempt:
            return ""
        which = f"?attempt={attempt}" + ("" if stream is None else f"&stream={quote(stream)}")
        return self._runtime.fetch_text(f"/api/v1/items/{quote(task_id, safe='')}/logs{which}")

    def follow(self, task_id: str, look: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        return self._runtime.follow_text(f"/api/v1/items/{quote(task_id, safe='')}/logs?follow=true")


class RemoteKnown(LoopThread, ControlPlane):
    """The questions and wishes of a ControlPlane, put to a service; :class:`ControlPlane` says what each means."""

    _client: ServiceClient
    _outbound: Outbound
    _fleet: Mapping[str, Any]
    _live: dict[str, Item]
    _submits_as: str | None
    """Whose everything is that is submitted with this token, where it is nobody else's."""
    calls: RemoteCalls
    acceptance: Acceptance

    def check_known(self, task_id: str) -> None:
        if self.settled(task_id) is None:
            self._ask("GET", path_of(task_id))

    def whole_id(self, task_id: str) -> str:
        gang_id, _, at = task_id.rpartition(".")
        if at.isdecimal() and gang_id and self.item(task_id) is None and self.item(gang_id) is not None:
            return gang_id
        return task_id

    def is_call(self, item_id: str) -> bool:
        return self.calls.was_issued(item_id)

    def calls_of(self, actor: Item) -> RemoteActorCalls:
        return RemoteActorCalls(actor, self.calls)

    def cancel_call(self, call_id: str, *, force: bool) -> None:
        self.calls.cancel(call_id, force=force)

    def explain_call(self, call: CallPromise) -> dict[str, Any]:
        assert isinstance(call, RemoteCall)
        return self.calls.explain(call)

    def explain(self, task_id: str) -> dict[str, Any]:
        if self.is_call(task_id):
            return self.calls.explain_by_id(task_id)
        item = self._live.get(task_id)
        gang = None if item is not None else self._live.get(task_id.rpartition(".")[0])
        if gang is not None and is_member(gang.task, task_id):
            item = gang
        if item is not None and not item.accepted:
            why = f": {self._outbound.trouble}" if self._outbound.trouble else "."
            said = f"{self._client.address} has not said yet that it accepted it{why}"
            sentence = f"{said} While this program runs, it is tried again"
            story = Explanation(id=item.id, state=str(item.state), code="NOT_ACCEPTED", sentence=sentence)
            if item.task.gang is not None and item is gang:
                story["member"] = member_summary(task_id, [one.name for one in item.task.gang.members])
            return story
        return Explanation(**self._ask("GET", path_of(task_id, "explain")))

    def kept_value(self, outcome: Outcome, timeout: float | None = None) -> bytes:
        async def fetched() -> bytes:
            async with asyncio.timeout(timeout):
                return await self._client.fetch(path_of(outcome.completion.task_id, "result"))

        try:
            return self.run(fetched())
        except TimeoutError:
            raise not_in_time(outcome, timeout or 0.0) from None

    def plan(self, task: TaskDescription) -> SchedulingDecision:
        document = document_of(self.owned(task))
        return SchedulingDecision.from_dict(self._ask("POST", "/api/v1/plan", {"task": document}))

    def owned(self, task: TaskDescription) -> TaskDescription:
        """As whose it is submitted with this token, where its owner was not named."""
        if self._submits_as is None or task.owner != default_owner():
            return task
        return replace(task, owner=self._submits_as)

    def job_info(self, job_id: str) -> dict[str, Any]:
        item = self._live.get(job_id)
        if item is not None:
            self.acceptance.wait(item)
        answer: dict[str, Any] = self._ask("GET", f"/api/v1/jobs/{quote(job_id, safe='')}")
        return answer

    def job_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        path, more = f"/api/v1/jobs?limit={JOBS_AT_ONCE}", ""
        while True:
            page = self._ask("GET", path + more)
            rows += page["jobs"]
            if page["after"] is None:
                return rows[::-1]
            more = f"&after={quote(page['after'], safe='')}"

    def actor_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._ask("GET", "/api/v1/actors")["actors"]
        return rows

    def events(self, wanted: EventFilter, since: int | None) -> EventIterator:
        found = EventIterator(self, told(self._client, wanted, since))
        found.begin(PATIENCE_S)
        return found

    def job_log(self, job_id: str) -> str:
        self.settled(job_id)
        return self.fetch_text(path_of(job_id, "logs"))

    def follow_job_log(self, job_id: str) -> Iterator[str]:
        self.settled(job_id)
        return self.follow_text(f"{path_of(job_id, 'logs')}?follow=true")

    def fetch_text(self, path: str) -> str:
        return self.run(self._client.fetch(path)).decode(errors="replace")

    def follow_text(self, path: str) -> Iterator[str]:
        """Pieces as they come. They are fetched when they are asked for."""
        stream = self._client.stream(path)
        assert isinstance(stream, AsyncGenerator)

        async def one_more() -> str | None:
            return await anext(stream, None)

        try:
            while (piece := self.run(one_more())) is not None:
                yield piece
        finally:
            self.leave(stream.aclose())

    def tell(self, event: brain.Event) -> None:
        match event:
            case brain.HoldRequested(task_id, reason):
                self._order(task_id, "hold", {"reason": reason})
            case brain.ReleaseRequested(task_id):
                self._order(task_id, "release", {})
            case brain.PriorityChanged(task_id, priority):
                self._order(task_id, "priority", {"priority": priority})
            case brain.QueuePaused(what, name, reason):
                self._ask("POST", f"/api/v1/queue/{what}/{quote(name, safe='')}/pause", {"reason": reason})
            case brain.QueueResumed(what, name):
                self._ask("POST", f"/api/v1/queue/{what}/{quote(name, safe='')}/resume", {})
            case brain.OwnerLimitsChanged(owner, None):
                self._ask("DELETE", f"/api/v1/owners/{quote(owner, safe='')}")
            case brain.OwnerLimitsChanged(owner, limits):
                assert limits is not None
                self._ask("PUT", f"/api/v1/owners/{quote(owner, safe='')}", limits.model_dump())
            case brain.CordonChanged(cluster, cordoned):
                verb = "cordon" if cordoned else "uncordon"
                self._ask("POST", f"/api/v1/clusters/{quote(cluster, safe='')}/{verb}", {})
            case _:
                raise TypeError(f"a service cannot be told of {event!r}")

    def _order(self, task_id: str, verb: str, said: Mapping[str, Any]) -> None:
        item = self._live.get(task_id)
        if item is not None:
            self.acceptance.wait(item)
        try:
            self._ask("POST", path_of(task_id, verb), said)
        except SchedulerError as error:
            if type(error) is not SchedulerError or not self._is_over(task_id):  # to which nothing happens
                raise

    def _is_over(self, task_id: str) -> bool:
        try:
            state = self._ask("GET", path_of(task_id))["state"]
        except SchedulerError:
            return False
        return state == "EXPIRED" or TaskState(state).terminal

    @property
    def homes(self) -> Sequence[str]:
        return list(dict.fromkeys([str(Path.home()), *self._fleet["homes"]]))

    def check_cluster(self, name: str) -> None:
        known = self._fleet["clusters"]
        if name not in known:
            raise ConfigurationError(
                f"There is no cluster {name!r}.", next_step=f"use one of {', '.join(known) or 'none'}"
            )

    def limits_of(self, owner: str, *, anew: bool = False) -> OwnerLimits:
        if anew:
            self._fleet = self._ask("GET", "/api/v1/fleet")
        found = self._fleet["settings"]["owners"].get(owner)
        return NO_LIMITS if found is None else OwnerLimits.model_validate(found)

    def cluster_rows(self, refresh: Sequence[str] | None = ()) -> list[dict[str, Any]]:
        for name in refresh or ():
            self._ask("GET", f"/api/v1/clusters/{quote(name, safe='')}")
        rows: list[dict[str, Any]] = self._ask("GET", f"/api/v1/clusters?refresh={str(refresh is None).lower()}")[
            "clusters"
        ]
        return rows

    def node_rows(self, clusters: Sequence[str]) -> list[dict[str, Any]]:
        rows = self._ask("GET", "/api/v1/nodes")["nodes"]
        return [row for row in rows if row["Cluster"] in clusters]

    def is_drained(self, cluster: str) -> bool | None:
        drained: bool | None = self._ask("GET", f"/api/v1/clusters/{quote(cluster, safe='')}/drained")["drained"]
        return drained

    def declare_dead(self, cluster: str, reason: str, *, force: bool) -> list[str]:
        said = {"reason": reason, "force": force}
        path = f"/api/v1/clusters/{quote(cluster, safe='')}/declare-dead"
        # Not twice: what came there after the first time would be settled, too.
        items: list[str] = self.run(self._client.once("POST", path, said))["items"]
        return items

    def _ask(self, method: str, path: str, said: Mapping[str, Any] | None = None) -> Any:
        return self.run(self._client.ask(method, path, said))


def path_of(item_id: str, verb: str = "") -> str:
    return f"/api/v1/items/{quote(item_id, safe='')}" + (f"/{verb}" if verb else "")


def document_of(task: TaskDescription) -> dict[str, Any]:
    """Without what is as it always is."""
    return {name: value for name, value in task.to_dict().items() if value not in _EMPTY}


_EMPTY: tuple[Any, ...] = (None, (), {}, [])
