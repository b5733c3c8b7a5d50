"""Starting an agent in a cluster: a Ray job of zero CPUs that runs our gateway and dials back."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.common.control_characters import escaped
from ray_multicluster_scheduler.common.current_item import INSIDE_VARIABLE
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.agents.agent_dialer import Admit
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem, from_agent_log
from ray_multicluster_scheduler.scheduler.connection.packages.own_package import ship_own_package
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache

_log = get_logger(__name__)
_POLL_S = 0.25
JOIN_TIMEOUT_S = 60.0
ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_MOST_OTHERS, _LONGEST_NAME = 10, 64
CONTROL_PLANE_KEY, AGENT_KEY = "rmcs_control_plane", "rmcs_agent"
Listens = Callable[[m.Listens | None], None]


@dataclass(frozen=True, slots=True)
class JoinInvitation:
    """What an agent is told: where to dial, the one-time token, whom to trust. Or, with ``listens_for``, to listen at
    ``port`` (0: any free one) of its own machine for whoever has the key of that certificate."""

    host: str
    port: int
    token: str
    certificate: str | None
    listens_for: str | None = None
    admit: Admit | None = None
    """How a connection to it that somebody else has made is let in."""

    @property
    def addresses(self) -> list[list[str | int]]:
        return [] if self.listens_for is not None else [[self.host, self.port]]


class _Looking:
    """Looks after an agent's job, one look at a time; nobody has to wait for it."""

    def __init__(self, client: DashboardClient, agent: str, listens: Listens | None) -> None:
        self._client, self._agent, self._listens = client, agent, listens
        self.info: dict[str, Any] = {}
        """What is known of the job; empty as long as nothing is."""
        self._problem: DashboardProblem | None = None
        self._place: m.Listens | None = None
        self._under_way: asyncio.Task[None] | None = None

    def look(self) -> DashboardProblem | None:
        """Begin the next look, if the last one is over; says what went wrong with the last that ended, if
        anything did. ``listens`` may raise."""
        if self._under_way is not None and self._under_way.done():
            before, self._under_way, self._problem = self._under_way, None, None
            try:
                before.result()
            except DashboardProblem as error:
                self._problem = error  # one failed look is not a failed agent
            except TaskSubmissionError as error:
                _log.info("the log of agent %s cannot be read yet: %s", self._agent, error)
        if self._listens is not None:
            self._listens(self._place)
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._look())
        return self._problem

    async def stop(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _look(self) -> None:
        self.info = await self._client.job_info(self._agent) or {}  # that it has ended is known without its log
        if self._listens is not None and self._place is None and self.info:
            self._place = m.listens_at(await self._client.job_logs(self._agent))


class AgentLauncher:
    """Starts agents of one control plane."""

    def __init__(self, control_plane: str, packages: PackageCache) -> None:
        self._control_plane = control_plane
        self._packages = packages
        self.others: dict[str, tuple[str, ...]] = {}
        """By cluster: the control planes that had agents there, too, when one of ours was last started."""

    def forget_all_but(self, clusters: Collection[str]) -> None:
        """Of the others nobody asks any more."""
        for name in self.others.keys() - clusters:
            del self.others[name]

    async def launch(
        self,
        client: DashboardClient,
        python: str,
        link: AgentLink,
        invitation: JoinInvitation,
        listens: Listens | None = None,
    ) -> None:
        """Submit the agent's job and wait until it has joined. ``listens`` is called with what the log of its job says
        of where it listens, again and again, and may raise. Raises LinkProblem, DashboardProblem."""
        try:
            await self._submit(client, python, link, invitation)
        except TaskSubmissionError as error:
            raise LinkProblem(
                f"the agent of cluster {link.cluster!r} cannot be started there: {error.message}",
                code="AGENT_FAILED",
                permanent=False,
                cluster=link.cluster,
                next_step=error.next_step,
            ) from error
        looking = _Looking(client, link.agent, listens)
        try:
            await self._wait_until_joined(client, python, link, f"{invitation.host}:{invitation.port}", looking)
        finally:
            await looking.stop()

    async def _submit(self, client: DashboardClient, python: str, link: AgentLink, invitation: JoinInvitation) -> None:
        package = await ship_own_package(self._packages, client)
        await self._warn_of_foreign_agents(client)
        join: dict[str, Any] = {
            "cluster": link.cluster,
            "agent": link.agent,
            "addresses": invitation.addresses,
            "token": invitation.token,
            "own_modules": [package],
            "certificate": invitation.certificate,
        }
        if invitation.listens_for is not None:
            join["listen"] = {"port": invitation.port, "certificate": invitation.listens_for}
        await client.submit_job(
            link.agent,
            f"{shlex.quote(python)} -u -m ray_multicluster_scheduler.scheduler.connection.gateway",
            runtime_env={
                "py_modules": [package],
                "env_vars": {m.JOIN_VARIABLE: json.dumps(join), INSIDE_VARIABLE: link.cluster},
            },
            metadata={CONTROL_PLANE_KEY: self._control_plane, AGENT_KEY: link.cluster},
            entrypoint_num_cpus=0,
        )

    async def _wait_until_joined(
        self, client: DashboardClient, python: str, link: AgentLink, told: str, looking: _Looking
    ) -> None:
        """Whoever fails here has its job stopped by its caller. A dashboard that is slow to answer holds up nothing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_TIMEOUT_S
        while True:
            await asyncio.wait({link.joined}, timeout=_POLL_S)
            if link.joined.done():
                return
            problem = looking.look()
            if looking.info.get("status") in ENDED:
                # It may have joined and left between the two looks; the log tells what happened.
                raise await self._explain(client, python, link, told, looking.info)
            if problem is not None and (problem.permanent or loop.time() > deadline):
                raise problem
            if loop.time() > deadline:
                raise LinkProblem(
                    f"the agent in cluster {link.cluster!r} did not join within {JOIN_TIMEOUT_S:g} s "
                    f"(its job is {looking.info.get('status', 'unknown')}).",
                    code="AGENT_SLOW",
                    permanent=False,
                    cluster=link.cluster,
                    next_step="see in the cluster's dashboard why its job does not start; the head may be overloaded",
                )

    async def _explain(
        self, client: DashboardClient, python: str, link: AgentLink, told: str, info: dict[str, Any]
    ) -> LinkProblem:
        message = str(info.get("message") or "")
        try:
            log = await client.job_logs(link.agent)
        except (DashboardProblem, TaskSubmissionError) as error:
            _log.info("the log of agent %s cannot be read: %s", link.agent, error)
            log = ""
        return from_agent_log(link.cluster, python, told, str(info.get("status")), log or message)

    async def _warn_of_foreign_agents(self, client: DashboardClient) -> None:
        """Rules such as capacity and interval hold per control plane; say when there is another one."""
        try:
            jobs = await client.list_jobs()
        except DashboardProblem as problem:
            _log.info("cannot look for other control planes' agents: %s", problem)
            return
        found = {_control_plane_of(job) for job in jobs if _is_live_agent(job)} - {self._control_plane, ""}
        self.others[client.name] = tuple(sorted(found)[:_MOST_OTHERS])
        for other in self.others[client.name]:
            _log.warning(
                "cluster %s also serves another control plane (%s); each of them keeps its own limits only",
                client.name,
                other,
            )


def _control_plane_of(job: dict[str, Any]) -> str:
    """As that job says; anybody may have written it."""
    return escaped(str((job.get("metadata") or {}).get(CONTROL_PLANE_KEY) or ""))[:_LONGEST_NAME]


def _is_live_agent(job: dict[str, Any]) -> bool:
    return job.get("status") == "RUNNING" and AGENT_KEY in (job.get("metadata") or {})
