"""AgentRecord: what is stored of an agent so that the next process of the control plane can take it over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that may be alive.

    It dials ``host:port`` and has ``secret``; with ``tls`` it trusts only our key. A ``fresh`` agent has not joined
    yet: it has a one-time ``token`` and no calls. Its lease is ``lease_s`` (0: not recorded), extended by ``away_s``.
    ``carrier`` started it, for the reason ``why``, in the Ray session ``session`` ("": not recorded). An agent that we
    dial ``listens`` at these addresses, accepts our key ``identity``, and has a certificate with this ``fingerprint``.
    ``reached_at`` was the address of its cluster ("": not recorded); another address may belong to another cluster.
    ``lock_file``: see gateway/worker/process_lock.py ("": it has none).
    """

    cluster: str
    agent: str
    secret: str
    host: str
    port: int
    tls: bool = False
    token: str = ""
    away_s: float = 0.0
    lease_s: float = 0.0
    fresh: bool = False
    carrier: str = "agent"
    session: str = ""
    listens: tuple[tuple[str, int], ...] = ()
    identity: str = ""
    fingerprint: str = ""
    reached_at: str = ""
    why: str = ""
    lock_file: str = ""

    def lease_excess_s(self, lease_s: float) -> float:
        """The seconds by which its lease is longer than ``lease_s``."""
        return max(0.0, self.lease_s - lease_s)

    def sequence(self) -> tuple[int, ...]:
        """The growing numbers at the end of its name: of the process that started it, and of the agent."""
        return tuple(int(part) for part in self.agent.rsplit("-", 2)[1:] if part.isdecimal())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = {name: data[name] for name in cls.__slots__ if name in data}
        fields["listens"] = tuple((str(host), int(port)) for host, port in fields.get("listens", ()))
        return cls(**fields)


class AgentRecordStore(Protocol):
    """Stores the records. Used on one loop."""

    async def save(self, agent: AgentRecord) -> None:
        """Durable when it returns, which must be before the agent gets calls: otherwise the next process could give
        the same calls to another agent."""

    def remove(self, agent: str) -> None:
        """The agent is dead."""

    async def save_identity(self, pem: bytes) -> None:
        """Store our key and certificate, durable when it returns: agents trust no other."""


class NoAgentRecords:
    """AgentRecordStore of a control plane whose agents end with it."""

    async def save(self, agent: AgentRecord) -> None:
        pass

    def remove(self, agent: str) -> None:
        pass

    async def save_identity(self, pem: bytes) -> None:
        pass
