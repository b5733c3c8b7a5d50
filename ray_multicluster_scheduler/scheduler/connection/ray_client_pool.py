"""RayClientPool: the links for tasks and actors, one per cluster, made when first needed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import NOWHERE, AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import AgentListener, AgentReception
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import (
    AgentRecord,
    AgentRecordStore,
    NoAgentRecords,
)
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import (
    Carrier,
    CarrierChoice,
    CarrierSelector,
    reached_at,
    way_of,
)
from ray_multicluster_scheduler.scheduler.connection.agents.dial_in_carrier import DialInCarrier
from ray_multicluster_scheduler.scheduler.connection.agents.job_carrier import JobCarrier
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import (
    TlsIdentity,
    identity_from,
    make_identity,
)
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import ClusterLink, LinkListener
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CLUSTER_RESTARTED, LinkProblem
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache, PackageStore
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_carrier import ClientCarrier
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_packages import ConnectorPackageStore

_log = get_logger(__name__)
_WRITE_PATIENCE_S = 5.0


class RayClientPool:
    """Owns the links and the port where agents dial in. Lives on the control plane's loop.

    ``life`` counts the processes of one control plane, so that each gives its agents names of their own.
    """

    def __init__(
        self,
        clusters: Mapping[str, ClusterConfig],
        settings: Settings,
        jobs: JobClientPool,
        listener: LinkListener,
        clock: Clock,
        control_plane: str,
        packages: PackageCache,
        memory: AgentRecordStore | None = None,
        life: int = 1,
    ) -> None:
        self._memory: AgentRecordStore = memory or NoAgentRecords()
        self._life = life
        self._clusters = dict(clusters)
        self._settings, self._jobs, self._listener, self._clock = settings, jobs, listener, clock
        self._control_plane = control_plane
        launcher = self._launcher = AgentLauncher(control_plane, packages)
        self._by_client = ClientCarrier(self._clusters_now, settings)
        self._carriers: dict[str, Carrier] = {
            "agent": JobCarrier(self._clusters_now, settings, jobs, launcher),
            "dial_in": DialInCarrier(self._clusters_now, settings, jobs, launcher),
            "ray_client": self._by_client,
        }
        self._choices = CarrierSelector(clock)
        self._ports: dict[tuple[str, int], AgentListener] = {}
        self._dialled = AgentReception(clock)
        """Where those are let in that come to none of our ports."""
        self._identity: TlsIdentity | None = None
        self._links: dict[str, AgentLink] = {}
        self._starting: dict[str, asyncio.Task[AgentLink]] = {}
        self._since: dict[str, float] = {}
        self._farewells: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._known: dict[str, AgentRecord] = {}

    def update(self, clusters: Mapping[str, ClusterConfig]) -> None:
        """The fleet changed; links that exist stay until they are closed."""
        self._clusters = dict(clusters)
        self._choices.forget_all_but(self._clusters)
        self._launcher.forget_all_but(self._clusters)

    def _clusters_now(self, cluster: str) -> ClusterConfig:
        return self._clusters[cluster]

    def carrier(self, cluster: str) -> CarrierChoice | None:
        """How tasks get there, and why that way; None if there is no way."""
        config = self._clusters[cluster]
        if self.existing(cluster) is not None and (way := self._choices.taken(config)) is not None:
            return way
        try:
            return self._choices.choose(config)
        except LinkProblem:
            return None

    def packages(self, cluster: str) -> PackageStore:
        """Where packages for that cluster go: to its dashboard, or by its link. Raises DashboardProblem."""
        if self._jobs.has_dashboard(cluster):
            return self._jobs.client(cluster)

        async def ask(order: str, **more: Any) -> Any:
            return await self._by_client.ask((await self.link(cluster)).agent, order, **more)

        return ConnectorPackageStore(cluster, ask)

    def existing(self, cluster: str) -> ClusterLink | None:
        """The link if it is there and takes calls."""
        link = self._links.get(cluster)
        return None if link is None or link.closing or link.ended.is_set() else link

    def return_wait_s(self, cluster: str) -> float | None:
        """For so much longer its agent is waited for, which the process before ours had; None if there is none."""
        link = self._links.get(cluster)
        return None if link is None else link.return_wait_s

    def starting_since(self, cluster: str) -> float | None:
        """Since when an agent is being started there, for which calls wait; None if none is."""
        return self._since.get(cluster) if cluster in self._starting else None

    def other_control_planes(self, cluster: str) -> tuple[str, ...]:
        """Those that had agents there when one of ours was last started."""
        return self._launcher.others.get(cluster, ())

    def links(self) -> list[ClusterLink]:
        """Every link that is not over."""
        return [link for link in self._links.values() if not link.ended.is_set()]

    async def link(self, cluster: str) -> ClusterLink:
        """The link to a cluster; the first caller starts its agent, the others wait for it.

        Raises LinkProblem, DashboardProblem (both ClusterConnectionError), ConfigurationError.
        """
        link = self.existing(cluster)
        if link is not None:
            return link
        starting = self._starting.get(cluster)
        if starting is None:
            self._since[cluster] = self._clock.now()
            starting = self._starting[cluster] = asyncio.create_task(self._start(cluster))
            starting.add_done_callback(lambda _: self._starting.pop(cluster, None))
        return await asyncio.shield(starting)

    async def close_link(self, cluster: str, sentence: str) -> None:
        """End this cluster's agent."""
        link = self.existing(cluster)
        if link is not None:
            await link.close(sentence)

    async def close(self, sentence: str = "the control plane ends") -> None:
        """End every agent, answer every call, close the port."""
        for starting in list(self._starting.values()):
            starting.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await asyncio.gather(*(link.close(sentence) for link in self.links()))
        await asyncio.gather(*self._farewells)
        await asyncio.gather(*(carrier.close() for carrier in self._carriers.values()))
        for port in self._ports.values():
            await port.close()
        self._ports.clear()

    async def park(self, away_s: float = 0.0) -> list[str]:
        """Close the port and forget the links: the agents go on, and dial until their leases end, but for those that
        have nothing that the next process could want. With ``away_s`` all are told that they may go on for so much
        longer. Returns the clusters whose agents have heard it."""
        for task in [*self._starting.values(), *self._farewells]:
            task.cancel()
        await asyncio.gather(*self._starting.values(), *self._farewells, return_exceptions=True)
        # Before anybody is told anything: an agent that is let in again takes us for back.
        for port in self._ports.values():
            port.stop_admitting()
        await asyncio.gather(*(carrier.stop_dialing() for carrier in self._carriers.values()))
        told = await self._announce(away_s) if away_s else await self._end_idle()
        await asyncio.gather(*(link.park() for link in self._links.values()))
        await asyncio.gather(*(carrier.close() for carrier in self._carriers.values()))
        for port in self._ports.values():
            await port.close()
        self._ports.clear()
        return told

    async def _end_idle(self) -> list[str]:
        """All at once. One that does not hang up in time stays known, and ends with its lease. Names nobody."""
        idle = [link for link in self._links.values() if link.is_unused]
        await asyncio.gather(*(link.close("the control plane stops, and there is nothing to be kept") for link in idle))
        for link in idle:
            if link.closed_by_agent:
                self._forget(link.agent)
        return []

    async def _announce(self, away_s: float) -> list[str]:
        """Written before it is said: the next process must not take those for dead who know that they have time."""
        written = []
        try:
            async with asyncio.timeout(_WRITE_PATIENCE_S):
                for link in [one for one in self._links.values() if one.connected]:
                    known = self._known.get(link.agent)
                    if known is not None:
                        await self._remember(replace(known, away_s=max(known.away_s, away_s)))
                        written.append(link)
        except TimeoutError:
            _log.warning("that clusters are to go on without us cannot be written down, so they are not told")
        heard = await asyncio.gather(*(link.announce_absence(away_s) for link in written))
        return [link.cluster for link, yes in zip(written, heard, strict=True) if yes]

    async def _start(self, cluster: str) -> AgentLink:
        before = self._links.get(cluster)
        if before is not None:
            await before.ended.wait()  # one link of a cluster at a time, or their reports would mix
            self._forget(before.agent)  # it is dead: the next process must not take it for the link instead
        config = self._clusters[cluster]
        way = self._choices.choose(config)
        while True:
            try:
                link = await self._launch(config, way)
                self._choices.took(config, way)
                return link
            except LinkProblem as problem:
                way = self._choices.other_way(config, way.carrier, problem)
                _log.warning("%s Trying %s instead", problem.message, way.carrier)

    async def _launch(self, config: ClusterConfig, way: CarrierChoice) -> AgentLink:
        cluster, carrier = config.name, self._carriers[way.carrier]
        address = await asyncio.to_thread(carrier.address, config)  # it may ask the name service, which may be slow
        reception = self._reception(address)
        number = await reception.start()
        agent = f"rmcs-agent-{self._control_plane}-{cluster}-{self._life}-{next(self._numbers)}"
        link = self._new_link(cluster, agent, carrier)
        certificate = self._tls().certificate if address.tls else None
        token, secret = reception.expect(cluster, agent, link)
        invitation = JoinInvitation(
            address.tell_host, address.tell_port or number, token, certificate, admit=reception.admit
        )
        known = AgentRecord(
            cluster,
            agent,
            secret,
            address.host,
            number,
            address.tls,
            token,
            lease_s=self._settings.lease_s,
            fresh=True,
            carrier=way.carrier,
            why=way.why,
            reached_at=reached_at(config, way.carrier),
        )
        try:
            await self._remember(known)
            await carrier.launch(link, invitation)
            more = {"session": link.info.session_id, **carrier.remembers(agent)}
            await self._remember(replace(known, token="", fresh=False, **more))  # nosec B106 # it is forgotten here
        except BaseException:
            reception.forget(agent)
            await self._abandon(link, carrier)
            self._forget(agent)
            raise
        self._keep(link, reception, carrier)
        return link

    async def take_back(self, agents: Iterable[AgentRecord], identity: bytes | None) -> None:
        """Wait for the agents of the process before ours, where they dial. One whose port somebody else has by now ends
        by its lease, and what it ran is lost then. One that was just being started was given nothing yet: another is
        started when it is needed. Before anything is awaited here, all their links exist."""
        if identity is not None:
            self._identity = identity_from(identity)
        expected = []
        for one in sorted(agents, key=AgentRecord.age):  # of two of a cluster, the newer one is its link
            carrier = self._carriers[one.carrier]
            if one.fresh:
                self._forget(one.agent)
                self._beside(carrier.end(one.cluster, one.agent))
                continue
            tls = self._tls().context if one.tls else None
            place = (one.host, one.port if one.carrier == "agent" else 0)  # only such an agent knows where we were
            reception = self._dialled
            if one.carrier != "dial_in":
                reception = self._ports.setdefault(place, AgentListener(*place, self._clock, tls))
            link = self._new_link(one.cluster, one.agent, carrier, of_before=one)
            self._known[one.agent] = one
            if one.cluster in self._clusters:
                self._choices.took(self._clusters[one.cluster], way_of(one))
            reception.expect_return(one.cluster, one.agent, link, one.secret)
            self._keep(link, reception, carrier)
            expected.append((one, place, reception))
            if one.away_s:
                self._beside(self._is_back(link, one))
        for one, place, reception in expected:
            carrier = self._carriers[one.carrier]
            try:
                carrier.take_back(one, await reception.start(), reception.admit)
            except ConfigurationError as error:
                _log.warning("agent %s of cluster %s cannot come back: %s", one.agent, one.cluster, error)
                if one.carrier != "dial_in":
                    self._ports.pop(place, None)  # others are not to wait for it
                self._beside(carrier.end(one.cluster, one.agent))

    async def _is_back(self, link: AgentLink, agent: AgentRecord) -> None:
        """From now on its lease is as short as any."""
        waits = [asyncio.ensure_future(one.wait()) for one in (link.lease_renewed, link.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if not link.ended.is_set():
            await self._remember(replace(agent, away_s=0.0))

    def _new_link(
        self, cluster: str, agent: str, carrier: Carrier, *, of_before: AgentRecord | None = None
    ) -> AgentLink:
        """One ``of_before`` may have been given a longer lease than those of today, and is waited for accordingly."""
        longer_s = 0.0 if of_before is None else of_before.longer_s(self._settings.lease_s)
        return AgentLink(
            cluster,
            agent,
            self._listener,
            self._clock,
            heartbeat_s=self._settings.heartbeat_s,
            lease_s=self._settings.lease_s + longer_s,
            lost_after_s=self._settings.lost_after_s + longer_s,
            death_reason=lambda: self._is_over(carrier, cluster, agent),
            stop_agent=lambda: carrier.end(cluster, agent),
            inherited=of_before is not None,
            away_s=0.0 if of_before is None else of_before.away_s,
        )

    async def _is_over(self, carrier: Carrier, cluster: str, agent: str) -> str | None:
        """Why it is known to be dead. That nobody knows it at another address than it was started at says nothing: that
        may be another cluster. Then its lease decides."""
        said = await carrier.is_over(cluster, agent)
        known, config = self._known.get(agent), self._clusters.get(cluster)
        if said != CLUSTER_RESTARTED or known is None or config is None:
            return said
        elsewhere = known.reached_at not in ("", reached_at(config, known.carrier))
        return None if elsewhere else said

    async def _remember(self, agent: AgentRecord) -> None:
        if agent.tls:
            await self._memory.keep_identity(self._tls().pem)
        await self._memory.remember(agent)
        self._known[agent.agent] = agent

    def _forget(self, agent: str) -> None:
        self._known.pop(agent, None)
        self._memory.forget(agent)

    def _keep(self, link: AgentLink, reception: AgentReception, carrier: Carrier) -> None:
        self._links[link.cluster] = link
        self._beside(self._after(link, reception, carrier))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _after(self, link: AgentLink, reception: AgentReception, carrier: Carrier) -> None:
        """A link is over: its agent may not come back, and is stopped by hand unless it hung up when told to."""
        await link.ended.wait()
        reception.forget(link.agent)
        if not link.closed_by_agent:
            await carrier.end(link.cluster, link.agent)
        await carrier.release(link.agent)
        self._forget(link.agent)

    def _reception(self, address: AgentAddress) -> AgentReception:
        if address == NOWHERE:
            return self._dialled
        for (host, number), port in self._ports.items():
            if host == address.host and address.port in (0, number):
                return port
        tls = self._tls().context if address.tls else None
        port = self._ports[address.host, address.port] = AgentListener(address.host, address.port, self._clock, tls)
        return port

    def _tls(self) -> TlsIdentity:
        if self._identity is None:
            self._identity = make_identity()
        return self._identity

    async def _abandon(self, link: AgentLink, carrier: Carrier) -> None:
        """A launch failed or was cancelled: leave no agent behind, however far it got."""
        await link.close("the launch was given up")
        if not link.closed_by_agent:
            await carrier.end(link.cluster, link.agent)
        await carrier.release(link.agent)
