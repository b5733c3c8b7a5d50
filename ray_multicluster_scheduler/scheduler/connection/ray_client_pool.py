"""RayClientPool: the links for tasks and actors, one per cluster, made when first needed.

A link is made by a carrier, which starts an agent in the cluster. Agents are recorded, so that the next process of the
control plane can take them over, with their work. An embedded program leaves them to the next program, without work.
"""

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
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import NO_LISTENER, AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import AgentLauncher, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import (
    AgentAdmission,
    AgentListener,
    new_token,
)
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import (
    AgentRecord,
    AgentRecordStore,
    NoAgentRecords,
)
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import (
    Carrier,
    CarrierChoice,
    CarrierSelector,
    carrier_endpoint,
    recorded_choice,
)
from ray_multicluster_scheduler.scheduler.connection.agents.job_carrier import DialInCarrier, JobCarrier
from ray_multicluster_scheduler.scheduler.connection.agents.lingering_agents import (
    ClaimedAgent,
    LingeringAgents,
    Terms,
)
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import (
    TlsIdentity,
    identity_from,
    make_identity,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import ClusterLink, LinkListener
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import (
    CLUSTER_RESTARTED,
    PROCESSES_DEAD,
    LinkProblem,
)
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache, PackageStore
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_carrier import (
    ClientCarrier,
    ConnectorPackageStore,
)

_log = get_logger(__name__)
_WRITE_TIMEOUT_S = 5.0
_DEATH_REASON_TIMEOUT_S = 1.0
"""For the cluster to say more about the end of an agent that is known to be dead."""
_TAKE_OVER_S = 1.5
"""A lingering agent that does not join in this time is replaced. One that was left just now may still be importing Ray,
and gets as much time as its start took."""


class RayClientPool:
    """Owns the links and the ports where agents dial in. Lives on the control plane's loop.

    ``life`` numbers the processes of one control plane, so that agent names are unique.
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
        records: AgentRecordStore | None = None,
        life: int = 1,
        lingering: LingeringAgents | None = None,
    ) -> None:
        """``lingering``: agents are taken over from the program before, and left to the next one."""
        self._lingering = lingering
        self._leavable: dict[str, tuple[Terms, float]] = {}
        """The agents that the next program may take over: their terms, and how long their start took."""
        self._record_store: AgentRecordStore = records or NoAgentRecords()
        self._life = life
        self._clusters = dict(clusters)
        self._settings, self._jobs, self._listener, self._clock = settings, jobs, listener, clock
        self._control_plane = control_plane
        launcher = self._launcher = AgentLauncher(
            control_plane, packages, idle=lambda: set() if lingering is None else lingering.names()
        )
        self._client_carrier = ClientCarrier(self._config, settings)
        self._carriers: dict[str, Carrier] = {
            "agent": JobCarrier(self._config, settings, jobs, launcher),
            "dial_in": DialInCarrier(self._config, settings, jobs, launcher),
            "ray_client": self._client_carrier,
        }
        self._selector = CarrierSelector(clock)
        self._ports: dict[tuple[str, int], AgentListener] = {}
        self._dialed = AgentAdmission(clock)
        """Admits the agents that we dial, which use none of our ports."""
        self._identity: TlsIdentity | None = None
        self._links: dict[str, AgentLink] = {}
        self._starting: dict[str, asyncio.Task[AgentLink]] = {}
        self._starting_since: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._records: dict[str, AgentRecord] = {}

    def update(self, clusters: Mapping[str, ClusterConfig]) -> None:
        """Take a new configuration; links that exist stay until they are closed."""
        self._clusters = dict(clusters)
        self._selector.retain(self._clusters)
        self._launcher.retain(self._clusters)

    def _config(self, cluster: str) -> ClusterConfig:
        return self._clusters[cluster]

    def carrier(self, cluster: str) -> CarrierChoice | None:
        """The carrier of the current or next link, with the reason; None if the cluster has no usable carrier."""
        config = self._clusters[cluster]
        if self.existing_link(cluster) is not None and (choice := self._selector.last_choice(config)) is not None:
            return choice
        try:
            return self._selector.choose(config)
        except LinkProblem:
            return None

    def packages(self, cluster: str) -> PackageStore:
        """The package store of that cluster: by its dashboard, or by its link. Raises DashboardProblem."""
        if self._jobs.has_dashboard(cluster):
            return self._jobs.client(cluster)

        async def ask(order: str, **more: Any) -> Any:
            return await self._client_carrier.ask((await self.link(cluster)).agent, order, **more)

        return ConnectorPackageStore(cluster, ask)

    def existing_link(self, cluster: str) -> ClusterLink | None:
        """The link of this cluster if it accepts calls, else None."""
        link = self._links.get(cluster)
        return None if link is None or link.closing or link.ended.is_set() else link

    def return_wait_s(self, cluster: str) -> float | None:
        """Seconds until the agent of the previous process is given up; None if there is none."""
        link = self._links.get(cluster)
        return None if link is None else link.return_wait_s

    def starting_since(self, cluster: str) -> float | None:
        """When the start of an agent began for which calls wait; None if no agent is starting."""
        return self._starting_since.get(cluster) if cluster in self._starting else None

    def other_control_planes(self, cluster: str) -> tuple[str, ...]:
        """Other control planes that had agents in the cluster when our last agent was started there."""
        return self._launcher.others.get(cluster, ())

    def links(self) -> list[ClusterLink]:
        """Every link that has not ended."""
        return [link for link in self._links.values() if not link.ended.is_set()]

    async def link(self, cluster: str) -> ClusterLink:
        """The link to a cluster; the first caller starts its agent, the others wait for it.

        Raises LinkProblem, DashboardProblem (both ClusterConnectionError), ConfigurationError.
        """
        link = self.existing_link(cluster)
        if link is not None:
            return link
        starting = self._starting.get(cluster)
        if starting is None:
            self._starting_since[cluster] = self._clock.now()
            starting = self._starting[cluster] = asyncio.create_task(self._start(cluster))
            starting.add_done_callback(lambda _: self._starting.pop(cluster, None))
        return await asyncio.shield(starting)

    async def close_link(self, cluster: str, sentence: str) -> None:
        """End this cluster's agent."""
        link = self.existing_link(cluster)
        if link is not None:
            await link.close(sentence)

    async def close(self, sentence: str = "the control plane ends") -> None:
        """End every agent or leave it to the next program, report every call as finished, close the ports."""
        await _cancel(self._starting.values())
        for port in self._ports.values():
            port.stop_admitting()  # an agent that is left would take this program for the next one
        await asyncio.gather(*(self._close_or_leave(link, sentence) for link in self._links.values()))
        await asyncio.gather(*self._background)
        await self._close_carriers_and_ports()

    async def _close_or_leave(self, link: AgentLink, sentence: str) -> None:
        record, leavable = self._records.get(link.agent), self._leavable.get(link.agent)
        if self._lingering is None or record is None or leavable is None or not link.connected:
            if not link.ended.is_set():
                await link.close(sentence)
            return
        record = replace(record, token=new_token(), secret="")  # nosec B106 # the agent forgets it
        if record.tls:
            record = replace(record, identity=self._tls().pem.decode())
        if await link.leave(self._lingering.linger_s, record.token, sentence):
            try:
                await asyncio.to_thread(self._lingering.leave, record, *leavable)
            except OSError as error:
                _log.info("agent %s cannot be left to the next program: %s", link.agent, error)

    async def park(self, away_s: float = 0.0) -> list[str]:
        """Disconnect, and leave the agents to the next process: they reconnect until their leases expire.

        Unused agents are stopped. With ``away_s``, instead, every agent's lease is extended by that time; returns the
        clusters with agents that confirmed it."""
        await _cancel([*self._starting.values(), *self._background])
        # First: an agent that reconnects would take this process for the next one.
        for port in self._ports.values():
            port.stop_admitting()
        await asyncio.gather(*(carrier.stop_dialing() for carrier in self._carriers.values()))
        confirmed = []
        if away_s:
            confirmed = await self._announce_absence(away_s)
        else:
            await self._end_unused()
        await asyncio.gather(*(link.park() for link in self._links.values()))
        await self._close_carriers_and_ports()
        return confirmed

    async def _close_carriers_and_ports(self) -> None:
        await asyncio.gather(*(carrier.close() for carrier in self._carriers.values()))
        for port in self._ports.values():
            await port.close()
        self._ports.clear()

    async def _end_unused(self) -> None:
        """Stop unused agents. One that does not close its connection in time stays recorded until its lease expires."""
        unused = [link for link in self._links.values() if link.is_unused]
        await asyncio.gather(*(link.close("the control plane stops, and the agent is not needed") for link in unused))
        for link in unused:
            if link.closed_by_agent:
                self._remove_record(link.agent)

    async def _announce_absence(self, away_s: float) -> list[str]:
        """Record the extension before announcing it, or the next process could declare living agents dead."""
        recorded = []
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                for link in [one for one in self._links.values() if one.connected]:
                    record = self._records.get(link.agent)
                    if record is not None:
                        await self._save_record(replace(record, away_s=max(record.away_s, away_s)))
                        recorded.append(link)
        except TimeoutError:
            _log.warning("the lease extension cannot be stored in time, so it is not announced to all agents")
        confirmed = await asyncio.gather(*(link.announce_absence(away_s) for link in recorded))
        return [link.cluster for link, yes in zip(recorded, confirmed, strict=True) if yes]

    async def _start(self, cluster: str) -> AgentLink:
        before = self._links.get(cluster)
        if before is not None:
            await before.ended.wait()  # one link per cluster at a time, or their reports would mix
            self._remove_record(before.agent)  # the agent is dead: the next process must not restore it
        config = self._clusters[cluster]
        choice = self._selector.choose(config)
        while True:
            try:
                link = await self._launch(config, choice)
                self._selector.record_link(config, choice)
                return link
            except LinkProblem as problem:
                choice = self._selector.choose_after(config, choice.carrier, problem)
                _log.warning("%s Trying %s instead", problem.message, choice.carrier)

    async def _launch(self, config: ClusterConfig, choice: CarrierChoice) -> AgentLink:
        cluster, carrier = config.name, self._carriers[choice.carrier]
        address = await asyncio.to_thread(carrier.address, config)  # it may resolve a host name, which may be slow
        terms: Terms | None = None
        if self._lingering is not None and choice.carrier == "agent":
            terms = await asyncio.to_thread(self._lingering.terms, config, address)
            claimed = await asyncio.to_thread(self._lingering.claim, terms)
            taken = None if claimed is None else await self._take_over(claimed, carrier)
            if claimed is not None and taken is not None:
                self._leavable[taken.agent] = terms, claimed.start_s
                return taken
        began = asyncio.get_running_loop().time()
        admission = self._admission(address)
        port = await admission.start()
        agent = f"rmcs-agent-{self._control_plane}-{cluster}-{self._life}-{next(self._numbers)}"
        link = self._new_link(cluster, agent, carrier)
        certificate = self._tls().certificate if address.tls else None
        token, secret = admission.expect(cluster, agent, link)
        invitation = JoinInvitation(
            address.dial_host, address.dial_port or port, token, certificate, admit=admission.admit
        )
        record = AgentRecord(
            cluster,
            agent,
            secret,
            address.host,
            port,
            address.tls,
            token,
            lease_s=self._settings.lease_s,
            fresh=True,
            carrier=choice.carrier,
            why=choice.why,
            reached_at=carrier_endpoint(config, choice.carrier),
        )
        try:
            await self._save_record(record)
            await carrier.launch(link, invitation)
            info = link.info
            more = {"session": info.session_id, "lock_file": info.lock_file, **carrier.record_fields(agent)}
            await self._save_record(replace(record, token="", fresh=False, **more))  # nosec B106 # the token was used
        except BaseException:
            admission.revoke(agent)
            await link.close("the launch failed or was cancelled")
            await self._clean_up_after(link, admission, carrier)
            raise
        self._register(link, admission, carrier)
        if terms is not None:
            self._leavable[agent] = terms, asyncio.get_running_loop().time() - began
        return link

    async def _take_over(self, claimed: ClaimedAgent, carrier: Carrier) -> AgentLink | None:
        """The link to an agent that the program before left idle; None if it does not join soon."""
        record = claimed.record
        link = self._new_link(record.cluster, record.agent, carrier)
        why = "it is not reachable any more"
        admission: AgentAdmission | None = None
        try:
            admission = self._port_of(record)
            _, secret = admission.expect(record.cluster, record.agent, link, record.token)
            await admission.start()
            why = await self._problem_of(link, carrier, max(_TAKE_OVER_S, claimed.start_s - claimed.left_s_ago))
        except ConfigurationError as error:
            if admission is not None:
                self._ports.pop((record.host, record.port), None)  # new agents must not use it
            why = error.message
        finally:
            if not link.joined.done():
                if admission is not None:
                    admission.revoke(record.agent)
                await link.park()
                self._run_in_background(carrier.stop(record.cluster, record.agent))
        if admission is None or not link.joined.done():
            _log.info("agent %s of cluster %s is not taken over: %s", record.agent, record.cluster, why)
            return None
        _log.info("the agent %s of the program before is used for cluster %s", record.agent, record.cluster)
        lock_file = link.info.lock_file  # a new one since its execve
        self._records[record.agent] = replace(record, secret=secret, token="", lock_file=lock_file)  # nosec B106 # used
        self._register(link, admission, carrier)
        return link

    async def _problem_of(self, link: AgentLink, carrier: Carrier, timeout_s: float) -> str:
        """Wait until a lingering agent has joined; returns why it has not."""
        asked = asyncio.create_task(carrier.death_reason(link.cluster, link.agent))
        try:
            async with asyncio.timeout(timeout_s):
                either: set[asyncio.Future[Any]] = {link.joined, asked}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not link.joined.done() and (reason := asked.result()) is not None:
                    return reason
                await asyncio.wait({link.joined})
        except TimeoutError:
            return "it does not answer"
        finally:
            await _cancel([asked])
        return ""

    def _port_of(self, record: AgentRecord) -> AgentListener:
        """The port that a lingering agent dials. Raises ConfigurationError."""
        tls = None
        if record.tls:
            self._identity = self._identity or identity_from(record.identity.encode())
            if self._identity.pem.decode() != record.identity:
                raise ConfigurationError("this program has another key already.", cluster=record.cluster)
            tls = self._identity.context
        place = (record.host, record.port)
        return self._ports.setdefault(place, AgentListener(*place, self._clock, tls))

    async def restore_agents(self, agents: Iterable[AgentRecord], identity: bytes | None) -> None:
        """Wait for the agents of the previous process on their ports, or dial them.

        If another process has a port now, its agents end when their leases expire, and their calls are lost. An agent
        that was still starting has no calls, and is stopped. All links exist before the first await.
        """
        if identity is not None:
            self._identity = identity_from(identity)
        expected = []
        for record in sorted(agents, key=AgentRecord.sequence):  # the newest agent of a cluster becomes its link
            carrier = self._carriers[record.carrier]
            if record.fresh:
                self._remove_record(record.agent)
                self._run_in_background(carrier.stop(record.cluster, record.agent))
                continue
            tls = self._tls().context if record.tls else None
            place = (record.host, record.port if record.carrier == "agent" else 0)  # only "agent" dials a known port
            admission = self._dialed
            if record.carrier != "dial_in":
                admission = self._ports.setdefault(place, AgentListener(*place, self._clock, tls))
            link = self._new_link(record.cluster, record.agent, carrier, record)
            self._records[record.agent] = record
            if record.cluster in self._clusters:
                self._selector.record_link(self._clusters[record.cluster], recorded_choice(record))
            admission.expect_return(record.cluster, record.agent, link, record.secret)
            self._register(link, admission, carrier)
            expected.append((record, place, admission))
            if record.away_s:
                self._run_in_background(self._end_absence(link, record))
        for record, place, admission in expected:
            carrier = self._carriers[record.carrier]
            try:
                carrier.restore(record, await admission.start(), admission.admit)
            except ConfigurationError as error:
                _log.warning("agent %s of cluster %s cannot return: %s", record.agent, record.cluster, error)
                if record.carrier != "dial_in":
                    self._ports.pop(place, None)  # new agents must not use it
                self._run_in_background(carrier.stop(record.cluster, record.agent))

    async def _end_absence(self, link: AgentLink, record: AgentRecord) -> None:
        """Reset the recorded lease extension once the agent has reconnected."""
        waits = [asyncio.ensure_future(one.wait()) for one in (link.lease_renewed, link.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if not link.ended.is_set():
            await self._save_record(replace(record, away_s=0.0))

    def _new_link(self, cluster: str, agent: str, carrier: Carrier, record: AgentRecord | None = None) -> AgentLink:
        """``record`` is from the previous process; its lease may be longer than that of the settings."""
        excess_s = 0.0 if record is None else record.lease_excess_s(self._settings.lease_s)
        return AgentLink(
            cluster,
            agent,
            self._listener,
            self._clock,
            heartbeat_s=self._settings.heartbeat_s,
            lease_s=self._settings.lease_s + excess_s,
            lost_after_s=self._settings.lost_after_s + excess_s,
            death_reason=lambda: self._death_reason(carrier, cluster, agent),
            stop_agent=lambda: carrier.stop(cluster, agent),
            inherited=record is not None,
            away_s=0.0 if record is None else record.away_s,
        )

    async def _death_reason(self, carrier: Carrier, cluster: str, agent: str) -> str | None:
        """If the cluster's address has changed, a cluster that does not know the agent may be another one: then its
        lock file decides, or else the lease."""
        record, config = self._records.get(agent), self._clusters.get(cluster)
        dead = record is not None and await asyncio.to_thread(process_lock.is_free, record.lock_file)
        try:
            async with asyncio.timeout(_DEATH_REASON_TIMEOUT_S if dead else None):
                reason = await carrier.death_reason(cluster, agent)
        except TimeoutError:
            reason = None
        if reason == CLUSTER_RESTARTED and record is not None and config is not None:
            moved = record.reached_at not in ("", carrier_endpoint(config, record.carrier))
            reason = None if moved else reason
        return PROCESSES_DEAD if dead and reason is None else reason

    async def _save_record(self, record: AgentRecord) -> None:
        if record.tls:
            await self._record_store.save_identity(self._tls().pem)
        await self._record_store.save(record)
        self._records[record.agent] = record

    def _remove_record(self, agent: str) -> None:
        self._records.pop(agent, None)
        self._leavable.pop(agent, None)
        self._record_store.remove(agent)

    def _register(self, link: AgentLink, admission: AgentAdmission, carrier: Carrier) -> None:
        self._links[link.cluster] = link
        self._run_in_background(self._clean_up_after(link, admission, carrier))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _clean_up_after(self, link: AgentLink, admission: AgentAdmission, carrier: Carrier) -> None:
        """Once the link has ended: reject the agent, and stop it unless it closed its connection on request."""
        await link.ended.wait()
        admission.revoke(link.agent)
        if not link.closed_by_agent:
            await carrier.stop(link.cluster, link.agent)
        await carrier.release(link.agent)
        self._remove_record(link.agent)

    def _admission(self, address: AgentAddress) -> AgentAdmission:
        if address == NO_LISTENER:
            return self._dialed
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


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
