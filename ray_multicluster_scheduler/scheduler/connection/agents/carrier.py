"""Carrier: the interface for starting, watching and stopping agents in a cluster, and CarrierSelector, which chooses
the carrier of each cluster: a job that dials back, a job that we dial, or a detached actor started by Ray Client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem

CarrierName = Literal["agent", "dial_in", "ray_client"]
_NO_CONNECTION = frozenset({"AGENT_CANNOT_DIAL", "AGENT_CANNOT_LISTEN", "AGENT_UNREACHABLE"})
"""Codes of agents that started but cannot connect to us; another carrier may connect them."""
CARRIER_RETRY_S = 600.0
"""A carrier that failed is tried again after this time, when the next agent is started."""


class Carrier:
    """Starts, watches and stops agents. The agent and its handshake are the same for all carriers."""

    def __init__(self, configs: Callable[[str], ClusterConfig], settings: Settings) -> None:
        self._configs, self._settings = configs, settings

    def address(self, config: ClusterConfig) -> AgentAddress:
        """The address where its agents dial in; NO_LISTENER if we dial them. Blocking; called on a thread. Raises
        ConfigurationError."""
        raise NotImplementedError

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        """Start the agent and wait until it has joined. Raises LinkProblem, DashboardProblem."""
        raise NotImplementedError

    def restore(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        """Expect an agent of the previous process: on this port of ours, or by ``admit`` if we dial it."""

    def record_fields(self, agent: str) -> Mapping[str, Any]:
        """Further fields of AgentRecord for an agent that has joined."""
        return {}

    async def death_reason(self, cluster: str, agent: str) -> str | None:
        """The reason why the agent and all its calls are dead; None if that is not known."""
        raise NotImplementedError

    async def stop(self, cluster: str, agent: str) -> None:
        """Stop the agent if it can be reached; otherwise its lease ends it."""
        raise NotImplementedError

    async def stop_dialing(self) -> None:
        """Dial no agent any more, even if its connection ends; keep the connections. Our ports are closed."""

    async def release(self, agent: str) -> None:
        """Free our resources for this agent, without a message to it."""

    async def close(self) -> None:
        """Free our resources for all agents."""


@dataclass(frozen=True, slots=True)
class CarrierChoice:
    """A carrier, and the reason for the choice, as shown to users."""

    carrier: CarrierName
    why: str


def carrier_options(config: ClusterConfig) -> list[CarrierChoice]:
    """The carriers that a configuration allows, the best first. Raises LinkProblem if there is none."""
    named = config.carrier
    if named == "auto":
        options = []
        if config.dashboard is not None:
            options.append(CarrierChoice("agent", "it has a dashboard to start an agent with"))
            options.append(CarrierChoice("dial_in", "its agent listens, and is dialled"))
        if config.head_address is not None:
            options.append(CarrierChoice("ray_client", "it has no dashboard to start an agent with"))
        return options
    needed = "head_address" if named == "ray_client" else "dashboard"
    if getattr(config, needed) is not None:
        return [CarrierChoice(named, f"its carrier is {named}")]
    raise LinkProblem(
        f"cluster {config.name!r} has no carrier for tasks: its carrier is {named}, and it has no {needed}.",
        code="NO_CARRIER",
        permanent=True,
        cluster=config.name,
        next_step=f"give the cluster's {needed}, or carrier: auto",
    )


def recorded_choice(agent: AgentRecord) -> CarrierChoice:
    """The carrier of an agent of the previous process, and why it was chosen."""
    return CarrierChoice(cast("CarrierName", agent.carrier), agent.why or "its agent came this way before the restart")


def carrier_endpoint(config: ClusterConfig, carrier: str) -> str:
    """The address of the cluster that this carrier uses."""
    return (config.head_address if carrier == "ray_client" else config.dashboard) or ""


class CarrierSelector:
    """Chooses carriers. Remembers per cluster which carriers failed, while its configuration stays the same and for
    :data:`CARRIER_RETRY_S` at most, and which one its last link used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[ClusterConfig, dict[CarrierName, tuple[LinkProblem, float]]]] = {}
        self._last: dict[str, tuple[ClusterConfig, CarrierChoice]] = {}

    def record_link(self, config: ClusterConfig, choice: CarrierChoice) -> None:
        """Record that a link was made with this carrier."""
        self._last[config.name] = (config, choice)

    def last_choice(self, config: ClusterConfig) -> CarrierChoice | None:
        """The choice of the last link; None without a link, or if the cluster's address has changed since."""
        used_with, choice = self._last.get(config.name, (None, None))
        return choice if used_with is not None and config.reached_like(used_with) else None

    def retain(self, clusters: Collection[str]) -> None:
        """Forget all other clusters: their names may be given to new clusters later."""
        for by_name in (self._failed, self._last):
            for name in by_name.keys() - clusters:
                del by_name[name]

    def choose(self, config: ClusterConfig) -> CarrierChoice:
        """The first carrier that has not failed. Raises LinkProblem."""
        failed = self._recent_failures(config)
        why: list[str] = []
        for option in carrier_options(config):
            if option.carrier not in failed:
                return replace(option, why=_join_sentences(why) or option.why)
            why.append(failed[option.carrier][0].message)
        raise AssertionError("the failure of the last carrier is not recorded")

    def choose_after(self, config: ClusterConfig, carrier: CarrierName, problem: LinkProblem) -> CarrierChoice:
        """The carrier to try after this problem. If none is left, the next attempt begins with the first.

        Raises LinkProblem: this problem, after those of the carriers tried before.
        """
        earlier = self._recent_failures(config)
        failed = {**earlier, carrier: (problem, self._clock.now())}
        if problem.code in _NO_CONNECTION and any(one.carrier not in failed for one in carrier_options(config)):
            self._failed[config.name] = (config, failed)
            return self.choose(config)
        self._failed.pop(config.name, None)
        if not earlier:
            raise problem
        raise LinkProblem(
            _join_sentences([one.message for one, _ in failed.values()]),
            code=problem.code,
            permanent=problem.permanent,
            cluster=config.name,
            next_step=problem.next_step,
        )

    def _recent_failures(self, config: ClusterConfig) -> dict[CarrierName, tuple[LinkProblem, float]]:
        """Failures of carriers with this configuration, with their times."""
        recorded_with, failed = self._failed.get(config.name, (None, {}))
        if recorded_with != config:
            return {}
        since = self._clock.now() - CARRIER_RETRY_S
        return {name: (problem, at) for name, (problem, at) in failed.items() if at > since}


def _join_sentences(texts: Sequence[str]) -> str:
    """Join sentences. Only later ones get a capital letter, because the first may follow a word of the caller's."""
    ended = [one if one.endswith((".", "!", "?")) else f"{one}." for one in texts]
    return " ".join([*ended[:1], *(one[:1].upper() + one[1:] for one in ended[1:])])
