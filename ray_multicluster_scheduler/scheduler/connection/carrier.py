"""How an agent gets into a cluster, is asked after, and is ended; and which of the ways a cluster is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.dialler import Admit
from ray_multicluster_scheduler.scheduler.connection.link_memory import RememberedAgent
from ray_multicluster_scheduler.scheduler.connection.link_problem import LinkProblem

CarrierName = Literal["agent", "dial_in", "ray_client"]
NO_WAY = frozenset({"AGENT_CANNOT_DIAL", "AGENT_CANNOT_LISTEN", "AGENT_UNREACHABLE"})
"""Codes of an agent that was started, but cannot be spoken to in this way; in another one it may be."""


class Carrier(Protocol):
    """One of the ways. Whatever carries it, the agent is the same, and joins at our port for agents."""

    def address(self, config: ClusterConfig) -> AgentAddress:
        """Where its agents come in. May take a while; called on a thread. Raises ConfigurationError."""

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        """Start the agent and wait until it has joined. Raises LinkProblem, DashboardProblem."""

    def take_back(self, agent: RememberedAgent, port: int, admit: Admit) -> None:
        """An agent of the process before ours may come back, at this port of ours, or by ``admit``."""

    def remembers(self, agent: str) -> Mapping[str, Any]:
        """Fields of RememberedAgent that the next process needs, once the agent has joined."""

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


def ways(config: ClusterConfig) -> list[CarrierChoice]:
    """The ways that its configuration leaves, the best first. Raises LinkProblem if there is none."""
    asked = config.carrier
    if asked == "ray_client" and config.head_address is not None:
        return [CarrierChoice("ray_client", "its carrier is ray_client")]
    if asked == "agent" and config.dashboard is not None:
        return [CarrierChoice("agent", "its carrier is agent")]
    if asked == "dial_in" and config.dashboard is not None:
        return [CarrierChoice("dial_in", "its carrier is dial_in")]
    if asked == "auto":
        left = []
        if config.dashboard is not None:
            left.append(CarrierChoice("agent", "it has a dashboard, by which an agent is started"))
            left.append(CarrierChoice("dial_in", "its agent listens, and is dialled"))
        if config.head_address is not None:
            left.append(CarrierChoice("ray_client", "it has no dashboard, by which an agent could be started"))
        return left
    lacking = "head_address" if asked == "ray_client" else "dashboard"
    raise LinkProblem(
        f"cluster {config.name!r} has no carrier for tasks: its carrier is {asked}, and it has no {lacking}.",
        code="NO_CARRIER",
        permanent=True,
        cluster=config.name,
        next_step=f"give the cluster's {lacking}, or carrier: auto",
    )


class Choices:
    """What was found out of each cluster, for as long as its configuration stays."""

    def __init__(self) -> None:
        self._closed: dict[str, tuple[ClusterConfig, dict[CarrierName, LinkProblem]]] = {}

    def choose(self, config: ClusterConfig) -> CarrierChoice:
        """Raises LinkProblem."""
        left, closed = self._left(config), self._of(config)
        if not closed:
            return left[0]
        return replace(left[0], why=" ".join(problem.message for problem in closed.values()))

    def other_way(self, config: ClusterConfig, by: CarrierName, problem: LinkProblem) -> CarrierChoice:
        """After this problem: the way to try now. If there is none any more, the next time begins with the first.

        Raises LinkProblem: this one, behind those of the ways that were tried before.
        """
        before = self._of(config)
        closed = {**before, by: problem}
        if problem.code in NO_WAY and any(way.carrier not in closed for way in ways(config)):
            self._closed[config.name] = (config, closed)
            return self.choose(config)
        self._closed.pop(config.name, None)
        if not before:
            raise problem
        raise LinkProblem(
            " ".join([one.message for one in closed.values()]),
            code=problem.code,
            permanent=problem.permanent,
            cluster=config.name,
            next_step=problem.next_step,
        )

    def _left(self, config: ClusterConfig) -> list[CarrierChoice]:
        closed = self._of(config)
        return [way for way in ways(config) if way.carrier not in closed]

    def _of(self, config: ClusterConfig) -> dict[CarrierName, LinkProblem]:
        known, closed = self._closed.get(config.name, (None, {}))
        return closed if known == config else {}
