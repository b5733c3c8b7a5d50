"""JobCarrier and DialInCarrier: run the agent as a Ray job, through the Jobs API; used by ``RayClientPool``.

The agent of a JobCarrier dials back to us. That of a DialInCarrier listens, and ``AgentDialer`` dials it: for clusters
that cannot reach us, but that we can reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.tls import client_context, peer_has_fingerprint
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import (
    NO_LISTENER,
    AgentAddress,
    agent_address,
)
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import ENDED, AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import Carrier
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import make_identity
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import (
    CLUSTER_RESTARTED,
    LinkProblem,
    agent_end_reason,
)

_log = get_logger(__name__)
_CONNECT_TIMEOUT_S = 3.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
REACH_S = 10.0
"""An agent that listens and was not reached in this time is unreachable."""

Addresses = tuple[tuple[str, int], ...]


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


class DialInCarrier(JobCarrier):
    """For clusters with a dashboard that we can reach. We make a key for each agent and pass it the certificate. The
    agent makes its own key and prints its fingerprint to its log, which only users who can run jobs there can write."""

    def __init__(
        self, configs: Callable[[str], ClusterConfig], settings: Settings, jobs: JobClientPool, launcher: AgentLauncher
    ) -> None:
        super().__init__(configs, settings, jobs, launcher)
        self._dialers: dict[str, AgentDialer] = {}
        self._listens: dict[str, Addresses] = {}
        """Where each agent reports that it listens."""

    def address(self, config: ClusterConfig) -> AgentAddress:
        """The token is in the environment of the agent's job; no port of ours must accept it from others."""
        return NO_LISTENER

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        config, admit = self._configs(link.cluster), invitation.admit
        assert admit is not None
        identity = await asyncio.to_thread(make_identity)
        found_at: float | None = None

        def on_listening(found: m.Listens | None) -> None:
            nonlocal found_at
            now = asyncio.get_running_loop().time()
            if found is None:
                return
            if found_at is None:
                found_at = now
                addresses, pem = (found[:2],), identity.pem.decode()
                self._dial(link.cluster, link.agent, addresses, pem, found.fingerprint, admit)
            elif now > found_at + REACH_S:
                raise _unreachable(config, found, self._dialers[link.agent].problem)

        invitation = replace(
            invitation, host="", port=config.agent_port, certificate=None, listens_for=identity.certificate
        )
        client = self._jobs.client(link.cluster)
        await self._launcher.launch(client, config.python, link, invitation, on_listening)

    def record_fields(self, agent: str) -> Mapping[str, Any]:
        dialer = self._dialers[agent]
        return {"listens": self._listens[agent], "identity": dialer.identity, "fingerprint": dialer.fingerprint}

    def restore(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        if not agent.identity:
            raise ConfigurationError("the key that the agent accepts is lost.", cluster=agent.cluster)
        self._dial(agent.cluster, agent.agent, agent.listens, agent.identity, agent.fingerprint, admit)

    def _dial(
        self, cluster: str, agent: str, listens: Addresses, identity: str, fingerprint: str, admit: Admit
    ) -> None:
        def addresses() -> Addresses:
            try:
                return _dial_addresses(self._configs(cluster), listens)
            except KeyError:  # a removed cluster is dialed where its agent listens, until its link has ended
                return listens

        self._listens[agent] = listens
        self._dialers[agent] = AgentDialer(agent, addresses, identity, fingerprint, admit)

    async def stop_dialing(self) -> None:
        await asyncio.gather(*(dialer.stop() for dialer in self._dialers.values()))

    async def release(self, agent: str) -> None:
        self._listens.pop(agent, None)
        dialer = self._dialers.pop(agent, None)
        if dialer is not None:
            await dialer.stop()

    async def close(self) -> None:
        await asyncio.gather(*(self.release(agent) for agent in list(self._dialers)))


class AgentDialer:
    """Dials one agent, again after each end of the connection, from its creation until :meth:`stop`.

    We show the key ``pem``; the agent must show a certificate with this ``fingerprint`` at one of ``addresses``, which
    are asked for before each attempt, as the configuration may change.
    """

    def __init__(
        self,
        agent: str,
        addresses: Callable[[], Sequence[tuple[str, int]]],
        pem: str,
        fingerprint: str,
        admit: Admit,
    ) -> None:
        self._agent, self._admit = agent, admit
        self._addresses, self.identity, self.fingerprint = addresses, pem, fingerprint
        self._tls = client_context(pem)
        self.problem = ""
        """Why the last attempt failed, as part of a sentence."""
        self._work = asyncio.create_task(self._dial())

    async def stop(self) -> None:
        """Stop dialing; an open connection belongs to its link."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _dial(self) -> None:
        failures = 0
        while True:
            try:
                writer = await self._connect()
            except Exception as error:  # noqa: BLE001 - nothing else would ever dial this agent again
                self.problem, writer = f"{type(error).__name__}: {error}", None
                _log.exception("unexpected error while dialing agent %s", self._agent)
            if writer is not None:
                failures = 0
                with suppress(OSError):  # however it ends, the agent is dialed again
                    await writer.wait_closed()
            await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    async def _connect(self) -> asyncio.StreamWriter | None:
        """A connection that was given to the link; None if there is none now."""
        problems = []
        for host, port in self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
            except (OSError, TimeoutError) as error:
                problems.append(f"{host}:{port} ({type(error).__name__}: {str(error) or 'no answer in time'})")
                continue
            if not peer_has_fingerprint(writer.get_extra_info("ssl_object"), self.fingerprint):
                writer.transport.abort()
                problems.append(f"{host}:{port} (the other end does not have the key of our agent)")
                continue
            if await self._admit(reader, writer):
                self.problem = ""
                return writer
            problems.append(f"{host}:{port} (the other end is not our agent)")
        self.problem = "; ".join(problems)
        _log.info("agent %s cannot be reached: %s", self._agent, self.problem)
        return None


def _dial_addresses(config: ClusterConfig, listens: Addresses) -> Addresses:
    """``agent_address`` if configured; else where the agent listens, then the same port of the dashboard's host, which
    often forwards it."""
    if config.agent_address is not None:
        host, _, port = config.agent_address.rpartition(":")
        return ((host.strip("[]"), int(port)),)
    dashboard = urlsplit(config.dashboard or "").hostname
    forwarded = [] if dashboard is None else [(dashboard, port) for _, port in listens]
    return tuple(dict.fromkeys([*listens, *forwarded]))


def _unreachable(config: ClusterConfig, found: m.Listens, problem: str) -> LinkProblem:
    return LinkProblem(
        f"the agent in cluster {config.name!r} listens at {found[0]}:{found[1]}, but cannot be reached from here: "
        f"{problem or 'no answer in time'}.",
        code="AGENT_UNREACHABLE",
        permanent=True,
        cluster=config.name,
        next_step=f"let this machine reach that port of the cluster (agent_port of cluster {config.name!r} fixes its "
        "number), or give agent_address if it has another address from here",
    )
