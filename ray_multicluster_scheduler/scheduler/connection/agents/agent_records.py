"""What a pool of links keeps of its agents, so that the next process can take them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that may live. It dials ``host:port`` and knows ``secret``; with ``tls`` it trusts our key alone.
    A ``fresh`` one has not joined yet: it has a one-time ``token``, and was given nothing. It was told to go on for
    ``away_s`` without us. The lease that it was given when it joined, ``lease_s``, is its own for life; 0: not written
    down. It came by ``carrier``, for the reason ``why``, into the Ray session ``session`` ("": not written down). One
    that is dialled ``listens`` at one of these addresses, is shown our key ``identity``, and shows a certificate with
    this ``fingerprint``. ``reached_at`` is where its cluster was then: who answers at another address may be another
    cluster ("": not written down)."""

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

    def longer_s(self, lease_s: float) -> float:
        """By so much its lease is longer than this one, if it is."""
        return max(0.0, self.lease_s - lease_s)

    def age(self) -> tuple[int, ...]:
        """The numbers at the end of its name: that of the process that started it, and its own."""
        return tuple(int(part) for part in self.agent.rsplit("-", 2)[1:] if part.isdecimal())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = {name: data[name] for name in cls.__slots__ if name in data}
        fields["listens"] = tuple((str(host), int(port)) for host, port in fields.get("listens", ()))
        return cls(**fields)


class AgentRecordStore(Protocol):
    """Used on one loop."""

    async def remember(self, agent: AgentRecord) -> None:
        """Durable when it returns: only then is anything given to the agent. Else it could run what the next process,
        which would know nothing of it, gives to another one."""

    def forget(self, agent: str) -> None:
        """Nothing of it lives any more."""

    async def keep_identity(self, pem: bytes) -> None:
        """Our key and certificate, durable when it returns: agents trust no other."""


class NoAgentRecords:
    """Of a control plane whose work ends with it."""

    async def remember(self, agent: AgentRecord) -> None:
        """Its agents end with it."""

    def forget(self, agent: str) -> None:
        """There is nothing."""

    async def keep_identity(self, pem: bytes) -> None:
        """Each has its own."""
