"""The agent as a Ray job that listens, and is dialled: for clusters that cannot reach us, but that we can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agent_launcher import AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.dialler import Admit, Dialler
from ray_multicluster_scheduler.scheduler.connection.job_carrier import JobCarrier
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.link_memory import RememberedAgent
from ray_multicluster_scheduler.scheduler.connection.link_problem import LinkProblem
from ray_multicluster_scheduler.scheduler.connection.tls_identity import make_identity

LOOPBACK = "127.0.0.1"
REACH_S = 10.0
"""An agent that listens, and was not reached in this time, cannot be reached."""


class DialInCarrier(JobCarrier):
    """A Carrier. Each agent has a key of its own, which it and we show each other."""

    def __init__(
        self,
        configs: Callable[[str], ClusterConfig],
        settings: Settings,
        jobs: JobClientPool,
        launcher: AgentLauncher,
    ) -> None:
        super().__init__(configs, settings, jobs, launcher)
        self._diallers: dict[str, Dialler] = {}

    def address(self, config: ClusterConfig) -> AgentAddress:
        """Nobody comes in there; it is as good as any."""
        return AgentAddress(LOOPBACK, 0, LOOPBACK, None)

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        config, admit = self._configs(link.cluster), invitation.admit
        assert admit is not None
        identity = (await asyncio.to_thread(make_identity)).pem.decode()
        found_at: float | None = None

        def listens(place: tuple[str, int] | None) -> None:
            nonlocal found_at
            now = asyncio.get_running_loop().time()
            if place is None:
                return
            if found_at is None:
                found_at = now
                self._diallers[link.agent] = Dialler(link.agent, _addresses(config, place), identity, admit)
            elif now > found_at + REACH_S:
                raise _unreachable(config, place, self._diallers[link.agent].problem)

        told = replace(invitation, host="", port=config.agent_port, certificate=None, identity=identity)
        client = self._jobs.client(link.cluster)
        await self._launcher.launch(client, config.python, link, told, listens)

    def remembers(self, agent: str) -> Mapping[str, Any]:
        dialler = self._diallers[agent]
        return {"listens": dialler.addresses, "identity": dialler.identity}

    def take_back(self, agent: RememberedAgent, port: int, admit: Admit) -> None:
        self._diallers[agent.agent] = Dialler(agent.agent, agent.listens, agent.identity, admit)

    async def let_go(self, agent: str) -> None:
        dialler = self._diallers.pop(agent, None)
        if dialler is not None:
            await dialler.stop()

    async def close(self) -> None:
        await asyncio.gather(*(self.let_go(agent) for agent in list(self._diallers)))


def _addresses(config: ClusterConfig, place: tuple[str, int]) -> list[tuple[str, int]]:
    """Where to dial: as the operator says, or where the agent says, or where its dashboard is, which forwards often."""
    if config.agent_address is not None:
        host, _, port = config.agent_address.rpartition(":")
        return [(host.strip("[]"), int(port))]
    dashboard = urlsplit(config.dashboard or "").hostname
    return [place] if dashboard in (None, place[0]) else [place, (dashboard, place[1])]


def _unreachable(config: ClusterConfig, place: tuple[str, int], problem: str) -> LinkProblem:
    return LinkProblem(
        f"the agent in cluster {config.name!r} listens at {place[0]}:{place[1]}, but cannot be reached from here: "
        f"{problem or 'no answer in time'}.",
        code="AGENT_UNREACHABLE",
        permanent=True,
        cluster=config.name,
        next_step=f"let this machine reach that port of the cluster (agent_port of cluster {config.name!r} fixes its "
        "number), or give agent_address if it has another address from here",
    )
