"""StoredMemory: what a pool of links keeps of its agents, in the store."""

from __future__ import annotations

import asyncio
import json

from ray_multicluster_scheduler.control_plane.store import Change, Store
from ray_multicluster_scheduler.scheduler.connection.link_memory import RememberedAgent

_AGENT, _IDENTITY = "agent:", "identity"


class StoredMemory:
    """A LinkMemory for a control plane that outlives its process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def agents(self) -> list[RememberedAgent]:
        """Those that may still live."""
        return [RememberedAgent.from_dict(json.loads(text)) for text in self._store.settings(_AGENT).values()]

    def identity(self) -> bytes | None:
        """Our key and certificate, if there ever was a need for them."""
        return self._store.settings(_IDENTITY).get(_IDENTITY)

    async def remember(self, agent: RememberedAgent) -> None:
        await self._keep(f"{_AGENT}{agent.agent}", json.dumps(agent.to_dict()).encode())

    def forget(self, agent: str) -> None:
        """If this is lost, the next process waits for one that never comes, and gives it up in time."""
        self._store.write(Change(settings={f"{_AGENT}{agent}": None}))

    async def keep_identity(self, pem: bytes) -> None:
        if self.identity() != pem:
            await self._keep(_IDENTITY, pem)

    async def _keep(self, key: str, value: bytes) -> None:
        await asyncio.wrap_future(self._store.write(Change(settings={key: value})))
