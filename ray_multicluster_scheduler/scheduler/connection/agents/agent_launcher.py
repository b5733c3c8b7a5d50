"""AgentLauncher: starts an agent as a Ray job of zero CPUs that runs our gateway, and waits until it has joined."""

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
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import Admit
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem, from_agent_log
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache, ship_own_package

_log = get_logger(__name__)
_POLL_S, _LISTENING_POLL_S = 1.0, 0.25
"""An agent that dials back reports itself; only its failure is found by polling. Where it listens is in its log."""
JOIN_TIMEOUT_S = 60.0
ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_MAX_OTHERS, _MAX_NAME_LENGTH = 10, 64
CONTROL_PLANE_KEY, AGENT_KEY = "rmcs_control_plane", "rmcs_agent"
OnListening = Callable[[m.Listens | None], None]


@dataclass(frozen=True, slots=True)
class JoinInvitation:
    """The data with which an agent joins: the address to dial, the one-time token, the certificate to trust. With
    ``listens_for`` it listens on ``port`` (0: any free one) of its node for the owner of that certificate."""

    host: str
    port: int
    token: str
    certificate: str | None
    listens_for: str | None = None
    admit: Admit | None = None
    """Admits a connection that was made to the agent."""

    @property
    def addresses(self) -> list[list[str | int]]:
        return [] if self.listens_for is not None else [[self.host, self.port]]


class _JobPoller:
    """Polls an agent's job in the background, one request at a time, so that a slow dashboard delays nothing."""

    def __init__(self, client: DashboardClient, agent: str, on_listening: OnListening | None) -> None:
        self._client, self._agent, self._on_listening = client, agent, on_listening
        self.dials_back = on_listening is None
        self.info: dict[str, Any] = {}
        """Ray's description of the job; empty until it is known."""
        self._problem: DashboardProblem | None = None
        self._listens: m.Listens | None = None
        self._request: asyncio.Task[None] | None = None

    def poll(self) -> DashboardProblem | None:
        """Start the next request if the previous one has ended. Returns the problem of the latest one that ended, or
        None. ``on_listening`` may raise."""
        if self._request is not None and self._request.done():
            ended, self._request, self._problem = self._request, None, None
            try:
                ended.result()
            except DashboardProblem as error:
                self._problem = error  # a failed request is not a failed agent
            except TaskSubmissionError as error:
                _log.info("the log of agent %s cannot be read yet: %s", self._agent, error)
        if self._on_listening is not None:
            self._on_listening(self._listens)
        if self._request is None:
            self._request = asyncio.create_task(self._ask())
        return self._problem

    async def stop(self) -> None:
        if self._request is not None:
            self._request.cancel()
            await asyncio.gather(self._request, return_exceptions=True)

    async def _ask(self) -> None:
        self.info = await self._client.job_info(self._agent) or {}  # its status is known without its log
        if self._on_listening is not None and self._listens is None and self.info:
            self._listens = m.listens_at(await self._client.job_logs(self._agent))


class AgentLauncher:
    """Starts the agents of one control plane."""

    def __init__(self, control_plane: str, packages: PackageCache, idle: Callable[[], set[str]] = set) -> None:
        """``idle`` returns the names of agents that no control plane uses."""
        self._control_plane, self._packages, self._idle = control_plane, packages, idle
        self.others: dict[str, tuple[str, ...]] = {}
        """By cluster: other control planes that had agents there when our last agent was started."""

    def retain(self, clusters: Collection[str]) -> None:
        """Forget all other clusters."""
        for name in self.others.keys() - clusters:
            del self.others[name]

    async def launch(
        self,
        client: DashboardClient,
        python: str,
        link: AgentLink,
        invitation: JoinInvitation,
        on_listening: OnListening | None = None,
    ) -> None:
        """Submit the agent's job and wait until the agent has joined. ``on_listening`` is called repeatedly with the
        address from the agent's log where it listens, and may raise. Raises LinkProblem, DashboardProblem."""
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
        poller = _JobPoller(client, link.agent, on_listening)
        try:
            await self._wait_until_joined(client, python, link, f"{invitation.host}:{invitation.port}", poller)
        finally:
            await poller.stop()

    async def _submit(self, client: DashboardClient, python: str, link: AgentLink, invitation: JoinInvitation) -> None:
        package = await ship_own_package(self._packages, client)
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
        submission = client.submit_job(
            link.agent,
            f"{shlex.quote(python)} -u -m ray_multicluster_scheduler.scheduler.connection.gateway",
            runtime_env={
                "py_modules": [package],
                "env_vars": {m.JOIN_VARIABLE: json.dumps(join), INSIDE_VARIABLE: link.cluster},
            },
            metadata={CONTROL_PLANE_KEY: self._control_plane, AGENT_KEY: link.cluster},
            entrypoint_num_cpus=0,
        )
        await asyncio.gather(submission, self._warn_about_other_control_planes(client))

    async def _wait_until_joined(
        self, client: DashboardClient, python: str, link: AgentLink, dialed: str, poller: _JobPoller
    ) -> None:
        """If this raises, the caller stops the job."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_TIMEOUT_S
        poll_s = _POLL_S if poller.dials_back else _LISTENING_POLL_S
        while True:
            await asyncio.wait({link.joined}, timeout=poll_s)
            if link.joined.done():
                return
            problem = poller.poll()
            if poller.info.get("status") in ENDED:
                # It may have joined and left since the last poll; the log has the reason.
                raise await self._explain(client, python, link, dialed, poller.info)
            if problem is not None and (problem.permanent or loop.time() > deadline):
                raise problem
            if loop.time() > deadline:
                raise LinkProblem(
                    f"the agent in cluster {link.cluster!r} did not join within {JOIN_TIMEOUT_S:g} s "
                    f"(its job is {poller.info.get('status', 'unknown')}).",
                    code="AGENT_SLOW",
                    permanent=False,
                    cluster=link.cluster,
                    next_step="check in the cluster's dashboard why its job does not start; the head may be overloaded",
                )

    async def _explain(
        self, client: DashboardClient, python: str, link: AgentLink, dialed: str, info: dict[str, Any]
    ) -> LinkProblem:
        message = str(info.get("message") or "")
        try:
            log = await client.job_logs(link.agent)
        except (DashboardProblem, TaskSubmissionError) as error:
            _log.info("the log of agent %s cannot be read: %s", link.agent, error)
            log = ""
        return from_agent_log(link.cluster, python, dialed, str(info.get("status")), log or message)

    async def _warn_about_other_control_planes(self, client: DashboardClient) -> None:
        """Limits such as capacity and interval apply per control plane, so warn about another one."""
        try:
            jobs = await client.list_jobs()
        except DashboardProblem as problem:
            _log.info("cannot check for agents of other control planes: %s", problem)
            return
        found = set()
        idle = await asyncio.to_thread(self._idle)
        for job in jobs:
            metadata = job.get("metadata") or {}  # not trusted
            used = job.get("submission_id") not in idle
            if job.get("status") == "RUNNING" and AGENT_KEY in metadata and used:
                found.add(escaped(str(metadata.get(CONTROL_PLANE_KEY) or ""))[:_MAX_NAME_LENGTH])
        self.others[client.name] = tuple(sorted(found - {self._control_plane, ""})[:_MAX_OTHERS])
        for other in self.others[client.name]:
            _log.warning(
                "cluster %s also serves another control plane (%s); each of them applies only its own limits",
                client.name,
                other,
            )
