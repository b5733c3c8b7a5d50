"""The agent as a Ray job that listens, and is dialled: for clusters that cannot reach us, but that we can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import NOWHERE, AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_dialer import Admit, AgentDialer
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.job_carrier import JobCarrier
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import make_identity
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem

Places = tuple[tuple[str, int], ...]
REACH_S = 10.0
"""An agent that listens, and was not reached in this time, cannot be reached."""


class DialInCarrier(JobCarrier):
    """A Carrier. For each agent we have a key of its own, of which it is told the certificate. Its own key it makes
    itself, and says in its log by which fingerprint it is known: whoever can write that can run jobs there."""

    def __init__(
        self,
        configs: Callable[[str], ClusterConfig],
        settings: Settings,
        jobs: JobClientPool,
        launcher: AgentLauncher,
    ) -> None:
        super().__init__(configs, settings, jobs, launcher)
        self._diallers: dict[str, AgentDialer] = {}
        self._places: dict[str, Places] = {}
        """Where each of them says that it listens."""

    def address(self, config: ClusterConfig) -> AgentAddress:
        """Its token stands in the environment of its job, so whoever reads that must find no port to show it at."""
        return NOWHERE

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        config, admit = self._configs(link.cluster), invitation.admit
        assert admit is not None
        identity = await asyncio.to_thread(make_identity)
        found_at: float | None = None

        def listens(place: m.Listens | None) -> None:
            nonlocal found_at
            now = asyncio.get_running_loop().time()
            if place is None:
                return
            if found_at is None:
                found_at = now
                places, pem = (place[:2],), identity.pem.decode()
                self._dial(link.cluster, link.agent, places, pem, place.fingerprint, admit)
            elif now > found_at + REACH_S:
                raise _unreachable(config, place, self._diallers[link.agent].problem)

        told = replace(invitation, host="", port=config.agent_port, certificate=None, listens_for=identity.certificate)
        client = self._jobs.client(link.cluster)
        await self._launcher.launch(client, config.python, link, told, listens)

    def remembers(self, agent: str) -> Mapping[str, Any]:
        dialler = self._diallers[agent]
        return {"listens": self._places[agent], "identity": dialler.identity, "fingerprint": dialler.fingerprint}

    def take_back(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        if not agent.identity:
            raise ConfigurationError("the key that it lets in is lost.", cluster=agent.cluster)
        self._dial(agent.cluster, agent.agent, agent.listens, agent.identity, agent.fingerprint, admit)

    def _dial(self, cluster: str, agent: str, places: Places, identity: str, fingerprint: str, admit: Admit) -> None:
        def addresses() -> Places:
            try:
                return _addresses(self._configs(cluster), places)
            except KeyError:  # one that leaves the configuration is reached as it says, until its link is over
                return places

        self._places[agent] = places
        self._diallers[agent] = AgentDialer(agent, addresses, identity, fingerprint, admit)

    async def stop_dialing(self) -> None:
        await asyncio.gather(*(dialler.stop() for dialler in self._diallers.values()))

    async def release(self, agent: str) -> None:
        self._places.pop(agent, None)
        dialler = self._diallers.pop(agent, None)
        if dialler is not None:
            await dialler.stop()

    async def close(self) -> None:
        await asyncio.gather(*(self.release(agent) for agent in list(self._diallers)))


def _addresses(config: ClusterConfig, places: Places) -> Places:
    """Where to dial: as the operator says, or where the agent says, or where its dashboard is, which forwards often."""
    if config.agent_address is not None:
        host, _, port = config.agent_address.rpartition(":")
        return ((host.strip("[]"), int(port)),)
    dashboard = urlsplit(config.dashboard or "").hostname
    forwarded = [] if dashboard is None else [(dashboard, port) for _, port in places]
    return tuple(dict.fromkeys([*places, *forwarded]))


def _unreachable(config: ClusterConfig, place: m.Listens, problem: str) -> LinkProblem:
    return LinkProblem(
        f"the agent in cluster {config.name!r} listens at {place[0]}:{place[1]}, but cannot be reached from here: "
        f"{problem or 'no answer in time'}.",
        code="AGENT_UNREACHABLE",
        permanent=True,
        cluster=config.name,
        next_step=f"let this machine reach that port of the cluster (agent_port of cluster {config.name!r} fixes its "
        "number), or give agent_address if it has another address from here",
    )
