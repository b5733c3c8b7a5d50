"""StoredMemory: what a pool of links keeps of its agents, in the store."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.store import Change, Store
from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE, is_undecryptable
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord

_log = get_logger(__name__)
_AGENT, _IDENTITY = "agent:", "identity"
_SECRET = ("secret", "token", "identity")
"""Fields of an agent by which somebody else could take its place, or ours."""


class StoredAgentRecords:
    """AgentRecordStore in the database, for a control plane that restarts. Keys are stored encrypted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def agents(self) -> list[AgentRecord]:
        """Those that may still live. One whose secrets cannot be opened is among them, as what it runs may go on until
        its lease ends; nobody can prove to be it, since nobody knows the secret that it has here. Raises StoreError if
        the key is there and cannot be used: then they are to be left alone until it can."""
        known = self._store.settings(_AGENT).values()
        if known:
            self._store.cipher.check_key()
        return [self._agent(json.loads(text)) for text in known]

    def identity(self) -> bytes | None:
        """Our key and certificate, if there ever was a need for them."""
        text = self._store.settings(_IDENTITY).get(_IDENTITY)
        if text is None:
            return None
        try:
            pem = self._opened(json.loads(text))
        except ValueError:  # it was written as it is
            pem = None
        if pem is None:
            _log.error("our key for agents cannot be opened with %s: another one is made when one is needed", KEY_FILE)
            return None
        return pem.encode()

    async def save(self, agent: AgentRecord) -> None:
        fields = agent.to_dict()
        for name in _SECRET:
            if fields[name]:
                fields[name] = self._store.cipher.encrypt_text(fields[name])
        await self._keep(f"{_AGENT}{agent.agent}", fields)

    def remove(self, agent: str) -> None:
        """If this is lost, the next process waits for one that never comes, and gives it up in time."""
        self._store.write(Change(settings={f"{_AGENT}{agent}": None}))

    async def save_identity(self, pem: bytes) -> None:
        if self.identity() != pem:
            await self._keep(_IDENTITY, self._store.cipher.encrypt_text(pem.decode("ascii")))

    async def _keep(self, key: str, value: Any) -> None:
        await asyncio.wrap_future(self._store.write(Change(settings={key: json.dumps(value).encode()})))

    def _agent(self, fields: dict[str, Any]) -> AgentRecord:
        opened = {name: self._opened(fields[name]) for name in _SECRET if fields.get(name)}
        fields |= {name: value or "" for name, value in opened.items()}
        if None in opened.values():
            fields["secret"] = secrets.token_urlsafe()
            _log.error(
                "what agent %s of cluster %s proves itself with cannot be opened with %s: it cannot come back, and "
                "what it runs is lost when it has ended, at the latest with its lease",
                fields["agent"],
                fields["cluster"],
                KEY_FILE,
            )
        return AgentRecord.from_dict(fields)

    def _opened(self, value: Any) -> str | None:
        """None if it cannot be, or was never sealed: then it is no secret any more."""
        text = self._store.cipher.decrypt(value) if isinstance(value, dict) else None
        return text if isinstance(text, str) and not is_undecryptable(text) else None
