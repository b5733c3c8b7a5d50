"""The agent as a Ray job: started, asked after and stopped over the Jobs API; it dials back by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress, agent_address
from ray_multicluster_scheduler.scheduler.connection.agents.agent_dialer import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import ENDED, AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CLUSTER_RESTARTED, agent_end_reason

_log = get_logger(__name__)


class JobCarrier:
    """A Carrier for clusters with a dashboard whose head can reach us."""

    def __init__(
        self,
        configs: Callable[[str], ClusterConfig],
        settings: Settings,
        jobs: JobClientPool,
        launcher: AgentLauncher,
    ) -> None:
        self._configs, self._settings, self._jobs, self._launcher = configs, settings, jobs, launcher

    def address(self, config: ClusterConfig) -> AgentAddress:
        return agent_address(
            self._settings.agent_listen, self._settings.agent_advertise, config.dashboard or "", config.name
        )

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        python = self._configs(link.cluster).python
        await self._launcher.launch(self._jobs.client(link.cluster), python, link, invitation)

    def take_back(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        """It dials by itself."""

    def remembers(self, agent: str) -> Mapping[str, Any]:
        return {}

    async def is_over(self, cluster: str, agent: str) -> str | None:
        try:
            info = await self._jobs.client(cluster).job_info(agent)
        except ClusterConnectionError:
            return None  # nobody answers: not known to be over, so the lease decides
        if info is None:
            return CLUSTER_RESTARTED
        if info.get("status") in ENDED:
            return agent_end_reason(str(info.get("message") or info["status"]))
        return None

    async def end(self, cluster: str, agent: str) -> None:
        try:
            await self._jobs.client(cluster).stop_job(agent)
        except ClusterConnectionError as error:
            _log.info("agent %s could not be stopped (%s); its lease ends it", agent, error)

    async def stop_dialing(self) -> None:
        """They dial by themselves, and our port is closed by now."""

    async def release(self, agent: str) -> None:
        """There is nothing of it here."""

    async def close(self) -> None:
        """There is nothing of them here."""
