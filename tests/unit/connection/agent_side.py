"""The agent's end of the lines to its workers and actors: a real server that records what it receives."""

from __future__ import annotations

from dataclasses import dataclass, field

from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker_server import WorkerServer


@dataclass
class AgentSide:
    """The agent's end, and what it heard."""

    server: WorkerServer
    line: AgentEndpoint
    received: list[Message] = field(default_factory=list)
    lines: list[tuple[tuple[str, int], bool]] = field(default_factory=list)
    """Lines of actors that opened and ended."""
    left_s: float = 30.0
    """What the agent's own lease has left."""
    questions: list[tuple[str, int]] = field(default_factory=list)
    """Calls that asked whether they may begin."""
    taken_back: set[tuple[str, int]] = field(default_factory=set)

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.received if message.kind == kind]

    def text(self) -> str:
        return "".join(text for message in self.of("output") for _, text in message.head["parts"])

    def may_begin(self, key: tuple[str, int]) -> bool:
        self.questions.append(key)
        return key not in self.taken_back

    def disappear(self) -> None:
        """Refuse new connections and cut off those that are open."""
        assert self.server._server is not None
        self.server._server.close()
        for worker in list(self.server._workers):
            worker.transport.abort()


async def agent_side(lock_file: str = "") -> AgentSide:
    received: list[Message] = []
    lines: list[tuple[tuple[str, int], bool]] = []
    server = WorkerServer(
        received.append,
        lambda: side.left_s,
        lambda key: side.may_begin(key),  # noqa: PLW0108 - created below
        lambda actor, is_open: lines.append((actor, is_open)),
    )
    side = AgentSide(server, await server.start("127.0.0.1", 30.0, lock_file), received, lines)
    return side
