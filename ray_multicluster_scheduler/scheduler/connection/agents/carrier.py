"""How an agent gets into a cluster, is asked after, and is ended; and which of the ways a cluster is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_dialer import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem

CarrierName = Literal["agent", "dial_in", "ray_client"]
NO_WAY = frozenset({"AGENT_CANNOT_DIAL", "AGENT_CANNOT_LISTEN", "AGENT_UNREACHABLE"})
"""Codes of an agent that was started, but cannot be spoken to in this way; in another one it may be."""


CLOSED_S = 600.0
"""After this a way that was found closed is tried again, when an agent is started the next time."""


class Carrier(Protocol):
    """One of the ways. Whatever carries it, the agent is the same, and joins by the same handshake."""

    def address(self, config: ClusterConfig) -> AgentAddress:
        """Where its agents come in; NOWHERE if they are dialled. May take a while; called on a thread. Raises
        ConfigurationError."""

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        """Start the agent and wait until it has joined. Raises LinkProblem, DashboardProblem."""

    def take_back(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        """An agent of the process before ours may come back, at this port of ours, or by ``admit``."""

    def remembers(self, agent: str) -> Mapping[str, Any]:
        """Fields of AgentRecord that the next process needs, once the agent has joined."""

    async def is_over(self, cluster: str, agent: str) -> str | None:
        """Why the agent, and with it all that it ran, is known to be dead; None if it is not known to be."""

    async def end(self, cluster: str, agent: str) -> None:
        """End the agent, if it can be reached; else its lease ends it."""

    async def stop_dialing(self) -> None:
        """No agent is dialled from now on, however its connection ends; those that stand stay. Our ports are closed
        already."""

    async def release(self, agent: str) -> None:
        """Nothing of ours may stay for it here; the agent itself is not told."""

    async def close(self) -> None:
        """The same of all of them."""


@dataclass(frozen=True, slots=True)
class _Closed:
    """A way that was found closed, and when."""

    problem: LinkProblem
    at: float


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


def way_of(agent: AgentRecord) -> CarrierChoice:
    """By which way an agent of the process before ours came, and why."""
    return CarrierChoice(cast("CarrierName", agent.carrier), agent.why or "its agent came this way before the restart")


def reached_at(config: ClusterConfig, by: str) -> str:
    """Where a cluster is asked after agents that came this way."""
    return (config.head_address if by == "ray_client" else config.dashboard) or ""


class CarrierSelector:
    """What was found out of each cluster, for as long as its configuration stays, and for :data:`CLOSED_S`: what was
    in the way may be mended without a word to us. And by which way the link of each came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed: dict[str, tuple[ClusterConfig, dict[CarrierName, _Closed]]] = {}
        self._taken: dict[str, tuple[ClusterConfig, CarrierChoice]] = {}

    def took(self, config: ClusterConfig, way: CarrierChoice) -> None:
        """Its link has come this way."""
        self._taken[config.name] = (config, way)

    def taken(self, config: ClusterConfig) -> CarrierChoice | None:
        """The way by which its last link came; None if there was none, or it is reached in another way since then."""
        known, way = self._taken.get(config.name, (None, None))
        return way if known is not None and config.reached_like(known) else None

    def forget_all_but(self, clusters: Collection[str]) -> None:
        """One that gets the name of another later is not that one."""
        for known in (self._closed, self._taken):
            for name in known.keys() - clusters:
                del known[name]

    def choose(self, config: ClusterConfig) -> CarrierChoice:
        """Raises LinkProblem."""
        closed = self._of(config)
        why: list[str] = []
        for way in ways(config):
            if way.carrier not in closed:
                return replace(way, why=_sentences(why) or way.why)
            why.append(closed[way.carrier].message)
        raise AssertionError("that the last way is closed is not kept")

    def other_way(self, config: ClusterConfig, by: CarrierName, problem: LinkProblem) -> CarrierChoice:
        """After this problem: the way to try now. If there is none any more, the next time begins with the first.

        Raises LinkProblem: this one, behind those of the ways that were tried before.
        """
        before = self._of(config)
        closed = {**before, by: problem}
        if problem.code in NO_WAY and any(way.carrier not in closed for way in ways(config)):
            known, still = self._closed.get(config.name, (config, {}))
            still = {way: one for way, one in still.items() if known == config and way in before}
            self._closed[config.name] = (config, {**still, by: _Closed(problem, self._clock.now())})
            return self.choose(config)
        self._closed.pop(config.name, None)
        if not before:
            raise problem
        raise LinkProblem(
            _sentences([one.message for one in closed.values()]),
            code=problem.code,
            permanent=problem.permanent,
            cluster=config.name,
            next_step=problem.next_step,
        )

    def _of(self, config: ClusterConfig) -> dict[CarrierName, LinkProblem]:
        known, closed = self._closed.get(config.name, (None, {}))
        if known != config:
            return {}
        since = self._clock.now() - CLOSED_S
        return {way: one.problem for way, one in closed.items() if one.at > since}


def _sentences(said: Sequence[str]) -> str:
    """One after the other. The first stays as it is: it may go on behind a word of its reader's."""
    whole = [one if one.endswith((".", "!", "?")) else f"{one}." for one in said]
    return " ".join([*whole[:1], *(one[:1].upper() + one[1:] for one in whole[1:])])
