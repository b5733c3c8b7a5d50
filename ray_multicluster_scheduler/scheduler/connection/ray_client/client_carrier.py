"""ClientCarrier: runs the agent as a detached actor, started by Ray Client; used by ``RayClientPool``.

For clusters without a dashboard, or without a direct connection in either direction. A separate connector process uses
Ray Client, so that our own process never imports Ray and is never blocked by it. The connector copies the bytes between
the agent and our port; for the link it is an ordinary connection.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
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
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import JOIN_TIMEOUT_S, JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import Carrier
from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import Timeouts
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import (
    CLUSTER_RESTARTED,
    GIVE_CONNECTOR,
    LinkProblem,
    from_connector,
)
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import OWN_EXCLUDES, OWN_PACKAGE
from ray_multicluster_scheduler.scheduler.connection.ray_client.connector_process import (
    Command,
    ConnectorFailure,
    ConnectorProcess,
)

_log = get_logger(__name__)
LOOPBACK = "127.0.0.1"
_BOOT = Path(connector.__file__).with_name("boot.py")
_MIN_CALL_TIMEOUT_S = 5.0
_FIRST_JOIN_S = 30.0
"""A gateway that gets no connection ends after this time: its connector may have died right after creating it."""
_SCRUBBED = ("RMCS_", "RAY_", "PYTHON", "COVERAGE_", "COV_CORE_", "PYTEST_")
_KEPT = ("RAY_USE_TLS", "RAY_TLS_")
_CONNECT_S, _RECONNECT_S = "3", "3"
"""Ray's default is 30 s; we supervise the process and replace it earlier."""


class ClientCarrier(Carrier):
    """Runs one connector process per agent."""

    def __init__(self, configs: Callable[[str], ClusterConfig], settings: Settings) -> None:
        super().__init__(configs, settings)
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
        python = connector_python(self._configs(link.cluster), self._settings)
        process = self._start(link.cluster, link.agent, invitation.port, join)
        ended = asyncio.ensure_future(process.wait_ended())
        try:
            either: set[asyncio.Future[Any]] = {link.joined, ended}
            await asyncio.wait(either, timeout=JOIN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if link.joined.done():
                return
            late = f"the gateway did not join within {JOIN_TIMEOUT_S:g} s: its connector was to {process.phase}"
            failure = ended.result() if ended.done() else ConnectorFailure(protocol.UNREACHABLE, late)
            raise from_connector(link.cluster, python, failure.code, failure.sentence, failure.next_step)
        finally:
            ended.cancel()

    def restore(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        try:
            self._start(agent.cluster, agent.agent, port, None, agent.session)
        except KeyError:
            _log.warning("agent %s: cluster %s was removed from the configuration", agent.agent, agent.cluster)

    async def death_reason(self, cluster: str, agent: str) -> str | None:
        process = self._processes.get(agent)
        if process is None or process.gone is None:
            return None
        if process.session and process.gone.session != process.session:
            return CLUSTER_RESTARTED
        if process.gone.dead:
            return f"its actor is gone: {process.gone.why}"
        return None  # its node may only be disconnected, so only the lease decides

    async def stop(self, cluster: str, agent: str) -> None:
        process = self._processes.get(agent)
        if process is None or process.gone is not None or not process.may_exist or await process.kill_gateway():
            return
        _log.info("agent %s of cluster %s could not be stopped; its lease ends it", agent, cluster)

    async def ask(self, agent: str, order: str, **more: Any) -> Any:
        """Send a request to the connector of this agent. Raises ClusterConnectionError."""
        process = self._processes.get(agent)
        if process is None:
            raise ClusterConnectionError(f"agent {agent} has no connector process.")
        return await process.ask(order, **more)

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
        find_order = protocol.ConnectorConfig(
            cluster=cluster,
            agent=agent,
            head=config.head_address or "",
            listener=(LOOPBACK, port),
            patience_s=max(2 * self._settings.heartbeat_s, _MIN_CALL_TIMEOUT_S),
            package=str(OWN_PACKAGE),
            excludes=OWN_EXCLUDES,
            inside=INSIDE_VARIABLE,
        )
        order = find_order if join is None else replace(find_order, join=join)

        def command() -> Command:
            nonlocal config
            with suppress(KeyError):  # a removed cluster keeps its last configuration until its link has ended
                config = self._configs(cluster)
            python = connector_python(config, self._settings)
            environment = connector_environment(os.environ, config.resolve_token())
            return Command([python, "-u", str(_BOOT)], environment, config.head_address)

        self._processes[agent] = process = ConnectorProcess(order, find_order, command, session=session)
        return process


class ConnectorPackageStore:
    """PackageStore of a cluster without a dashboard: its connector stores packages as Ray Client does.

    ``ask`` sends a request to the cluster's connector, and raises ClusterConnectionError.
    """

    def __init__(self, name: str, ask: Callable[..., Awaitable[Any]]) -> None:
        self.name, self._ask = name, ask

    async def package_exists(self, uri: str) -> bool:
        return bool(await self._ask(protocol.HAS_PACKAGE, uri=uri))

    async def upload_package(self, uri: str, source: Path | bytes) -> None:
        """Pass the path; the connector reads the file, as its input is for short lines only."""
        if isinstance(source, Path):
            await self._put(uri, str(source), (await asyncio.to_thread(source.stat)).st_size)
            return
        with tempfile.NamedTemporaryFile(prefix="rmcs-package-") as file:
            file.write(source)
            file.flush()
            await self._put(uri, file.name, len(source))

    async def _put(self, uri: str, path: str, size: int) -> None:
        """With the timeout of an upload to a dashboard."""
        limits = Timeouts()
        timeout_s = limits.upload_base + limits.upload_per_mib * size / 1024**2
        await self._ask(protocol.PUT_PACKAGE, timeout_s=timeout_s, uri=uri, path=path)


def connector_python(config: ClusterConfig, settings: Settings) -> str:
    """The interpreter of a cluster's connector: ``connector_python`` of the cluster or of the settings, else our own if
    it has ray. Raises LinkProblem."""
    named = config.connector_python or settings.connector_python
    if named is not None:
        found = shutil.which(os.path.expanduser(named))
        if found is None:
            raise LinkProblem(
                f"connector_python of cluster {config.name!r} is {named}, which cannot be run.",
                code="CONNECTOR_NO_RAY",
                permanent=True,
                cluster=config.name,
                next_step="give the path of a Python that has the cluster's version of Ray",
            )
        return found
    if importlib.util.find_spec("ray") is None:
        raise LinkProblem(
            f"cluster {config.name!r} is reached by Ray Client, and {sys.executable} has no ray.",
            code="CONNECTOR_NO_RAY",
            permanent=True,
            cluster=config.name,
            next_step=GIVE_CONNECTOR,
        )
    return sys.executable


def connector_environment(ours: Mapping[str, str], token: str | None) -> dict[str, str]:
    """The environment of a connector: without variables of our Python, our settings or Ray, except for Ray's TLS."""
    env = {key: value for key, value in ours.items() if not key.startswith(_SCRUBBED) or key.startswith(_KEPT)}
    env.update(
        {
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            "RAY_ENABLE_AUTO_CONNECT": "0",
            "RAY_AUTH_MODE": "disabled" if token is None else "token",
            "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": _CONNECT_S,
            "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": _CONNECT_S,
            "RAY_CLIENT_RECONNECT_GRACE_PERIOD": _RECONNECT_S,
            "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",
        }
    )
    if token is not None:
        env[protocol.TOKEN_VARIABLE] = token
    return env
