"""The agent as a detached actor, brought by Ray Client: for clusters without a dashboard, or that cannot reach us.

A connector process of ours speaks Ray Client, so that our own process never imports Ray and is never blocked by it.
What it carries are the bytes of the agent's connection; the link knows nothing of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.current_item import INSIDE_VARIABLE
from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection import connector
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_dialer import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import JOIN_TIMEOUT_S, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import (
    CLUSTER_RESTARTED,
    LinkProblem,
    from_connector,
)
from ray_multicluster_scheduler.scheduler.connection.packages.own_package import FOLDER, NOT_SHIPPED
from ray_multicluster_scheduler.scheduler.connection.ray_client.connector_process import (
    Command,
    ConnectorProcess,
    Failure,
)
from ray_multicluster_scheduler.scheduler.connection.ray_client.connector_python import (
    connector_environment,
    connector_python,
)

_log = get_logger(__name__)
LOOPBACK = "127.0.0.1"
_BOOT = Path(connector.__file__).with_name("boot.py")
_LEAST_PATIENCE_S = 5.0
_FIRST_JOIN_S = 30.0
"""A gateway that nobody connects to ends after this, should its connector die right after it was made."""


class ClientCarrier:
    """A Carrier; one connector process for each of its agents."""

    def __init__(self, configs: Callable[[str], ClusterConfig], settings: Settings) -> None:
        self._configs, self._settings = configs, settings
        self._processes: dict[str, ConnectorProcess] = {}

    def address(self, config: ClusterConfig) -> AgentAddress:
        """Always on loopback: the connector dials, not the agent."""
        return AgentAddress(LOOPBACK, 0, LOOPBACK, None)

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        join = {
            "cluster": link.cluster,
            "agent": link.agent,
            "addresses": [["its connector", 0]],
            "token": invitation.token,
            "carrier": "ray_client",
            "first_join_s": _FIRST_JOIN_S,
        }
        connector_python(self._configs(link.cluster), self._settings)  # raises, if there is none
        process = self._start(link.cluster, link.agent, invitation.port, join)
        ended = asyncio.ensure_future(process.wait_ended())
        try:
            either: set[asyncio.Future[Any]] = {link.joined, ended}
            await asyncio.wait(either, timeout=JOIN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if link.joined.done():
                return
            late = f"the gateway did not join within {JOIN_TIMEOUT_S:g} s: its connector was to {process.phase}"
            raise self._problem(link.cluster, ended.result() if ended.done() else Failure(o.UNREACHABLE, late))
        finally:
            ended.cancel()

    def remembers(self, agent: str) -> Mapping[str, Any]:
        return {}

    def take_back(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        try:
            self._start(agent.cluster, agent.agent, port, None, agent.session)
        except KeyError:
            _log.warning("agent %s: cluster %s is not in the configuration any more", agent.agent, agent.cluster)

    async def is_over(self, cluster: str, agent: str) -> str | None:
        process = self._processes.get(agent)
        if process is None or process.gone is None:
            return None
        if process.session and process.gone.session != process.session:
            return CLUSTER_RESTARTED
        if process.gone.dead:
            return f"its actor is gone: {process.gone.why or 'Ray does not say why'}"
        return None  # it may be on a node that is only cut off, so the lease decides

    async def end(self, cluster: str, agent: str) -> None:
        process = self._processes.get(agent)
        if process is None or process.gone is not None or not process.may_exist or await process.kill_gateway():
            return
        _log.info("the gateway %s of cluster %s could not be ended; its lease ends it", agent, cluster)

    async def ask(self, agent: str, order: str, **more: Any) -> Any:
        """Give an order to the connector of this agent. Raises ClusterConnectionError."""
        process = self._processes.get(agent)
        if process is None:
            raise ClusterConnectionError(f"there is no connector of {agent}.")
        return await process.ask(order, **more)

    async def stop_dialing(self) -> None:
        """Connectors dial our port, and that is closed by now."""

    async def release(self, agent: str) -> None:
        process = self._processes.pop(agent, None)
        if process is not None:
            await process.stop()

    async def close(self) -> None:
        await asyncio.gather(*(self.release(agent) for agent in list(self._processes)))

    def _start(
        self, cluster: str, agent: str, port: int, join: dict[str, object] | None, session: str = ""
    ) -> ConnectorProcess:
        config = self._configs(cluster)
        find = o.Order(
            cluster=cluster,
            agent=agent,
            head=config.head_address or "",
            listener=(LOOPBACK, port),
            patience_s=max(2 * self._settings.heartbeat_s, _LEAST_PATIENCE_S),
            package=str(FOLDER),
            excludes=NOT_SHIPPED,
            inside=INSIDE_VARIABLE,
        )
        order = find if join is None else replace(find, join=join)

        def command() -> Command:
            nonlocal config
            with suppress(KeyError):  # one that leaves the configuration is reached as before, until its link is over
                config = self._configs(cluster)
            python = connector_python(config, self._settings)
            environment = connector_environment(os.environ, config.resolve_token())
            return Command([python, "-u", str(_BOOT)], environment, config.head_address)

        self._processes[agent] = process = ConnectorProcess(order, find, command, session=session)
        return process

    def _problem(self, cluster: str, failure: Failure) -> LinkProblem:
        python = connector_python(self._configs(cluster), self._settings)
        return from_connector(cluster, python, failure.code, failure.sentence, failure.next_step)
