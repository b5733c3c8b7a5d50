"""JobCarrier: runs the agent as a Ray job, by the Jobs API; the agent dials back to us."""

from __future__ import annotations

from collections.abc import Callable

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress, agent_address
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import ENDED, AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import Carrier
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CLUSTER_RESTARTED, agent_end_reason

_log = get_logger(__name__)


class JobCarrier(Carrier):
    """For clusters with a dashboard whose head can reach us."""

    def __init__(
        self, configs: Callable[[str], ClusterConfig], settings: Settings, jobs: JobClientPool, launcher: AgentLauncher
    ) -> None:
        super().__init__(configs, settings)
        self._jobs, self._launcher = jobs, launcher

    def address(self, config: ClusterConfig) -> AgentAddress:
        return agent_address(
            self._settings.agent_listen, self._settings.agent_advertise, config.dashboard or "", config.name
        )

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        python = self._configs(link.cluster).python
        await self._launcher.launch(self._jobs.client(link.cluster), python, link, invitation)

    async def death_reason(self, cluster: str, agent: str) -> str | None:
        try:
            info = await self._jobs.client(cluster).job_info(agent)
        except ClusterConnectionError:
            return None  # not known to be dead, so the lease decides
        if info is None:
            return CLUSTER_RESTARTED
        if info.get("status") in ENDED:
            return agent_end_reason(str(info.get("message") or info["status"]))
        return None

    async def stop(self, cluster: str, agent: str) -> None:
        try:
            await self._jobs.client(cluster).stop_job(agent)
        except ClusterConnectionError as error:
            _log.info("agent %s could not be stopped (%s); its lease ends it", agent, error)
