"""Starting an agent in a cluster: a Ray job of zero CPUs that runs our gateway and dials back."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.common.current_item import INSIDE_VARIABLE
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.dialler import Admit
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.link_problem import LinkProblem, from_agent_log
from ray_multicluster_scheduler.scheduler.connection.own_package import ship_own_package
from ray_multicluster_scheduler.scheduler.connection.runtime_env_upload import PackageCache

_log = get_logger(__name__)
_POLL_S = 0.25
JOIN_TIMEOUT_S = 60.0
ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
CONTROL_PLANE_KEY, AGENT_KEY = "rmcs_control_plane", "rmcs_agent"
Listens = Callable[[tuple[str, int] | None], None]


@dataclass(frozen=True, slots=True)
class JoinInvitation:
    """What an agent is told: where to dial, the one-time token, whom to trust. Or, with ``identity``, to listen at
    ``port`` (0: any free one) of its own machine for whoever has the same key."""

    host: str
    port: int
    token: str
    certificate: str | None
    identity: str | None = None
    admit: Admit | None = None
    """How a connection to it that somebody else has made is let in."""

    @property
    def addresses(self) -> list[list[str | int]]:
        return [] if self.identity is not None else [[self.host, self.port]]


class AgentLauncher:
    """Starts agents of one control plane."""

    def __init__(self, control_plane: str, packages: PackageCache) -> None:
        self._control_plane = control_plane
        self._packages = packages

    async def launch(
        self,
        client: DashboardClient,
        python: str,
        link: AgentLink,
        invitation: JoinInvitation,
        listens: Listens | None = None,
    ) -> None:
        """Submit the agent's job and wait until it has joined. ``listens`` is called with what the log of its job says
        of where it listens, and may raise. Raises LinkProblem, DashboardProblem."""
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
        if invitation.identity is not None:
            join["listen"] = {"port": invitation.port, "identity": invitation.identity}
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
        await self._wait_until_joined(client, python, link, f"{invitation.host}:{invitation.port}", listens)

    async def _wait_until_joined(
        self, client: DashboardClient, python: str, link: AgentLink, told: str, listens: Listens | None
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_TIMEOUT_S
        while not link.joined.done():
            await asyncio.wait({link.joined}, timeout=_POLL_S)
            if link.joined.done():
                break
            try:
                info = await client.job_info(link.agent)
                if listens is not None and info is not None:
                    listens(m.listens_at(await client.job_logs(link.agent)))
            except DashboardProblem as problem:
                if problem.permanent or loop.time() > deadline:
                    raise
                continue  # one failed look is not a failed agent
            if info is not None and info.get("status") in ENDED:
                # It may have joined and left between the two looks; the log tells what happened.
                raise await self._explain(client, python, link, told, info)
            if loop.time() > deadline:
                await client.stop_job(link.agent)
                raise LinkProblem(
                    f"the agent in cluster {link.cluster!r} did not join within {JOIN_TIMEOUT_S:g} s "
                    f"(its job is {(info or {}).get('status', 'unknown')}).",
                    code="AGENT_SLOW",
                    permanent=False,
                    cluster=link.cluster,
                    next_step="see in the cluster's dashboard why its job does not start; the head may be overloaded",
                )

    async def _explain(
        self, client: DashboardClient, python: str, link: AgentLink, told: str, info: dict[str, Any]
    ) -> LinkProblem:
        log = await client.job_logs(link.agent)
        message = str(info.get("message") or "")
        return from_agent_log(link.cluster, python, told, str(info.get("status")), log or message)

    async def _warn_of_foreign_agents(self, client: DashboardClient) -> None:
        """Rules such as capacity and interval hold per control plane; say when there is another one."""
        try:
            jobs = await client.list_jobs()
        except DashboardProblem as problem:
            _log.info("cannot look for other control planes' agents: %s", problem)
            return
        for job in jobs:
            metadata = job.get("metadata") or {}
            other = metadata.get(CONTROL_PLANE_KEY)
            if AGENT_KEY in metadata and other != self._control_plane and job.get("status") == "RUNNING":
                _log.warning(
                    "cluster %s also serves another control plane (%s); each of them keeps its own limits only",
                    client.name,
                    other,
                )
