"""How an agent gets into a cluster, is asked after, and is ended; and which of the ways a cluster is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.link_memory import RememberedAgent
from ray_multicluster_scheduler.scheduler.connection.link_problem import LinkProblem

CarrierName = Literal["agent", "ray_client"]
CANNOT_DIAL = "AGENT_CANNOT_DIAL"


class Carrier(Protocol):
    """One of the ways. Whatever carries it, the agent is the same, and joins at our port for agents."""

    def address(self, config: ClusterConfig) -> AgentAddress:
        """Where its agents come in. May take a while; called on a thread. Raises ConfigurationError."""

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        """Start the agent and wait until it has joined. Raises LinkProblem, DashboardProblem."""

    def take_back(self, agent: RememberedAgent, port: int) -> None:
        """An agent of the process before ours may come back, at this port of ours."""

    async def is_over(self, cluster: str, agent: str) -> str | None:
        """Why the agent, and with it all that it ran, is known to be dead; None if it is not known to be."""

    async def end(self, cluster: str, agent: str) -> None:
        """End the agent, if it can be reached; else its lease ends it."""

    async def let_go(self, agent: str) -> None:
        """Nothing of ours may stay for it here; the agent itself is not told."""

    async def close(self) -> None:
        """The same of all of them."""


@dataclass(frozen=True, slots=True)
class CarrierChoice:
    """Which way, and why that one, for people."""

    carrier: CarrierName
    why: str


def choose(config: ClusterConfig, cannot_dial: str | None = None) -> CarrierChoice:
    """The way to this cluster; ``cannot_dial``: its agent was started, and this is why it could not reach us.

    Raises LinkProblem.
    """
    if config.carrier == "ray_client" and config.head_address is not None:
        return CarrierChoice("ray_client", "its carrier is ray_client")
    if config.carrier == "agent" and config.dashboard is not None:
        return CarrierChoice("agent", "its carrier is agent")
    if config.carrier == "auto" and config.dashboard is None:
        return CarrierChoice("ray_client", "it has no dashboard, so an agent cannot be started there as a job")
    if config.carrier == "auto" and cannot_dial is not None and config.head_address is not None:
        return CarrierChoice("ray_client", f"its agent cannot dial back to {cannot_dial}")
    if config.carrier == "auto":
        return CarrierChoice("agent", "it has a dashboard, by which an agent is started")
    lacking = "head_address" if config.carrier == "ray_client" else "dashboard"
    raise LinkProblem(
        f"cluster {config.name!r} has no carrier for tasks: its carrier is {config.carrier}, and it has no {lacking}.",
        code="NO_CARRIER",
        permanent=True,
        cluster=config.name,
        next_step=f"give the cluster's {lacking}, or carrier: auto",
    )


class Choices:
    """What was found out of each cluster, for as long as its configuration stays."""

    def __init__(self) -> None:
        self._cannot_dial: dict[str, tuple[ClusterConfig, str]] = {}

    def choose(self, config: ClusterConfig) -> CarrierChoice:
        """Raises LinkProblem."""
        known, why = self._cannot_dial.get(config.name, (None, None))
        return choose(config, why if known == config else None)

    def other_way(self, config: ClusterConfig, problem: LinkProblem) -> bool:
        """After this problem: is there another way now?"""
        if problem.code != CANNOT_DIAL:
            return False
        self._cannot_dial[config.name] = (config, problem.message.partition("cannot dial back to ")[2].rstrip("."))
        return self.choose(config).carrier == "ray_client"
