"""The control plane's end of a link: a listener, links on it, and a recorder of their events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import AgentListener
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from tests.support.links import FakeClock, RecordingListener
from tests.support.scripted_agent import ScriptedAgent


@dataclass
class Plane:
    """A control plane's end: the listener, its port, and links made on demand."""

    port: AgentListener
    number: int
    clock: FakeClock
    received: RecordingListener = field(default_factory=RecordingListener)
    job_over: str | None = None
    made: list[AgentLink] = field(default_factory=list)
    agents: list[ScriptedAgent] = field(default_factory=list)

    def link(self, *, death_reason: Callable[[], Awaitable[str | None]] | None = None, **values: Any) -> AgentLink:
        async def ask() -> str | None:
            return self.job_over

        times: dict[str, Any] = {"heartbeat_s": 5.0, "lease_s": 45.0, "lost_after_s": 60.0, **values}
        link = AgentLink("a", "agent-1", self.received, self.clock, death_reason=death_reason or ask, **times)
        self.made.append(link)
        return link

    async def pair(self, **values: Any) -> tuple[AgentLink, ScriptedAgent]:
        """A link and the agent that joined it."""
        link = self.link(**values)
        agent = await ScriptedAgent.joined(self.number, self.port.expect("a", "agent-1", link)[0])
        self.agents.append(agent)
        await link.joined
        await self.received.until("link_up")
        return link, agent


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    clock = FakeClock()
    port = AgentListener("127.0.0.1", 0, clock)
    made = Plane(port, await port.start(), clock)
    yield made
    for agent in made.agents:
        await agent.close()
    for link in made.made:
        await link.close("the test is over")
    await port.close()
